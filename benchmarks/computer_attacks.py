"""What hostile code tries from inside of a machine: programs in Python, by what they want.

Each prints TAKEN and what, or a secret that it found, where it has got something. `quiet` ones can share a machine; the
others use up what they get. What they are given: `secret`, a file of this machine's, and the folder that it lies in;
`port`, where this machine listens, on all of its `addresses`; `name`, of an abstract socket.
"""

from __future__ import annotations

SECRET = "flywheel-secret-"  # how secrets begin; none of the programs knows how one goes on

HEAD = '''
import ctypes, errno, fcntl, glob, json, os, platform, resource, signal, socket, stat, struct, subprocess, sys, time
given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def taken(what): print("TAKEN", what, flush=True)
def tried(what, call, *words):
    """Taken where the call succeeds, by Python's manner or by C's."""
    try:
        got = call(*words)
    except (OSError, ValueError, OverflowError):
        return None
    if not (isinstance(got, int) and not isinstance(got, bool) and got < 0):
        taken(what)
    return got
def show(path):
    try:
        with open(path, "rb") as file: print(file.read(4096).decode("utf-8", "replace"))
    except OSError: pass
def call(x86, arm, *words): return libc.syscall(arm if ARM else x86, *words)
def ask(kind, address, words=b"GET / HTTP/1.0\\r\\n\\r\\n"):
    """Connected is taken: nothing of its own listens here."""
    with socket.socket(kind, socket.SOCK_STREAM) as there:
        there.settimeout(0.5)
        there.connect(address)
        taken(f"a connection to {address}")
        there.sendall(words)
        print(there.recv(4096).decode("utf-8", "replace"))
def quietly(function, *words):
    try: function(*words)
    except (OSError, ValueError): pass
'''

QUIET: dict[str, str] = {
    # -- files --------------------------------------------------------------------------------------------------------
    "files of this machine by their paths": """
for path in map(os.path.expanduser, ("/etc/shadow", "~root/.ssh/id_rsa", "~root/.bash_history", given["secret"],
                                     "/etc/machine-id")):
    if os.path.exists(path): taken(path)
    show(path)
""",
    "any secret in all files that are seen": """
found = subprocess.run(["grep", "-rhsoE", "--binary-files=text", "--exclude-dir=usr", "--exclude-dir=proc",
                        "--exclude-dir=lib*", "--exclude-dir=sbin", "--exclude-dir=bin",
                        "flywheel-secret-[0-9a-f]+", "/"], capture_output=True, text=True, timeout=20)
print(found.stdout)
""",
    "roads out by the first process": """
roads = {"1": ("root", "cwd", "fd"), "self": ("root/..",), "1/task/1": ("root",)}
for path in [f"/proc/{who}/{road}" for who in roads for road in roads[who]]:
    for name in ("", "/..", "/../..", given["secret"]): show(path + name)
    quietly(lambda: [show(f"{path}/{name}") for name in os.listdir(path)])
""",
    "descriptors that were left open": """
for name in os.listdir("/proc/self/fd"):
    number = int(name)
    try: kind, where = os.fstat(number).st_mode, os.readlink(f"/proc/self/fd/{name}")
    except OSError: continue
    if number > 2 and not where.endswith("/fd") : taken(f"descriptor {number}: {where}")
    if stat.S_ISDIR(kind) and not where.endswith("/fd"): print(os.listdir(number))
""",
    "the system's files": """
for path in ("/usr/bin/ls", "/bin/sh", "/etc/passwd", "/etc/ld.so.cache", "/usr/x", "/x", "/etc/x", "/dev/x", "/proc/x",
             "/lib/x", sys.executable, os.__file__):
    tried(f"write {path}", os.open, path, os.O_WRONLY | (0 if os.path.exists(path) else os.O_CREAT))
    tried(f"mode of {path}", os.chmod, path, 0o777)
    tried(f"rename {path}", os.rename, path, path + "-mine")
tried("write the guest", os.open, given["guest"], os.O_WRONLY)
""",
    "the kernel's settings": """
for top, _, names in os.walk("/proc/sys"):
    for name in names: tried(f"write {top}/{name}", os.open, f"{top}/{name}", os.O_WRONLY)
""",
    "other files of the kernel's": """
for path in glob.glob("/proc/*") + glob.glob("/proc/*/*"):
    if path.split("/")[2].isdigit() or "self" in path or "/sys" in path: continue
    if not os.path.isfile(path): continue
    tried(f"write {path}", os.open, path, os.O_WRONLY)
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kpageflags", "/proc/vmallocinfo", "/sys/kernel", "/sys/fs/cgroup",
             "/proc/sysrq-trigger", "/proc/kpagecount"):
    tried(f"open {path}", os.open, path, os.O_RDONLY)
""",
    "devices": """
for path in ("vda", "sda", "mem", "kmem", "port", "kmsg", "kvm", "fuse", "vsock", "vhost-vsock", "net/tun", "uinput",
             "input/event0", "nvidia0", "console", "tty0", "tty1", "loop0", "loop-control", "snd/seq"):
    tried(f"open /dev/{path}", os.open, f"/dev/{path}", os.O_RDWR)
for number, kind in enumerate((stat.S_IFBLK, stat.S_IFCHR)):
    for major, minor in ((8, 0), (253, 0), (254, 0), (1, 1), (1, 11), (10, 232)):
        made = f"node-{number}-{major}-{minor}"
        tried(f"make {made}", os.mknod, made, 0o600 | kind, os.makedev(major, minor))
""",
    "file handles": """
root = ctypes.create_string_buffer(struct.pack("IIQ", 8, 1, 2))
tried("open_by_handle_at", call, 304, 265, os.open("/usr", os.O_RDONLY), root, 0)
handle, mount = ctypes.create_string_buffer(struct.pack("I", 128) + bytes(200)), ctypes.c_int()
tried("name_to_handle_at", call, 303, 264, -100, b"/usr", handle, ctypes.byref(mount), 0)
""",
    # -- mounts and namespaces ----------------------------------------------------------------------------------------
    "mounts": """
tried("mount", libc.mount, b"tmpfs", b"/tmp", b"tmpfs", 0, None)
tried("mount proc", libc.mount, b"proc", b"/tmp", b"proc", 0, None)
tried("mount cgroup", libc.mount, b"cgroup", b"/tmp", b"cgroup", 0, b"memory")
tried("bind", libc.mount, b"/usr", b"/tmp", None, 4096, None)
tried("remount", libc.mount, None, b"/usr", None, 32, None)
tried("umount", libc.umount2, b"/proc", 2)
tried("umount a cover", libc.umount2, b"/etc/passwd", 2)
tried("pivot_root", call, 155, 41, b"/tmp", b"/tmp")
tried("fsopen", call, 430, 430, b"tmpfs", 0)
tried("open_tree", call, 428, 428, -100, b"/usr", 1)
tried("chroot", os.chroot, "/usr")
""",
    "namespaces of its own": """
flags = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "cgroup": 0x2000000}
for name, flag in flags.items():
    tried(f"unshare {name}", libc.unshare, flag)
child = call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)
if child == 0: os._exit(0)
if child > 0: taken("a child in a user namespace"); os.waitpid(child, 0)
""",
    "namespaces of others": """
for path in glob.glob("/proc/[0-9]*/ns/*"):
    try: there = os.open(path, os.O_RDONLY)
    except OSError: continue
    tried(f"setns {path}", libc.setns, there, 0)
    tried(f"parent of {path}", fcntl.ioctl, there, 0xB702)
    os.close(there)
""",
    # -- other processes ----------------------------------------------------------------------------------------------
    "the guest's memory": """
tried("ptrace", libc.ptrace, 16, 1, None, None)
tried("seize", libc.ptrace, 0x4206, 1, None, None)
for name in ("mem", "environ", "maps", "auxv", "syscall", "stack", "personality"):
    tried(f"/proc/1/{name}", lambda: open(f"/proc/1/{name}", "rb").read(1))
here = ctypes.create_string_buffer(8)
class Vec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
mine, theirs = Vec(ctypes.addressof(here), 8), Vec(0x400000, 8)
tried("process_vm_readv", libc.process_vm_readv, 1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
tried("process_vm_writev", libc.process_vm_writev, 1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
""",
    "the guest's descriptors": """
there = os.pidfd_open(1)
for number in range(64): tried(f"pidfd_getfd {number}", call, 438, 438, there, number, 0)
""",
    "the guest's limits": """
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS):
    quietly(resource.prlimit, 1, what, (16, 16))
tried("priority", os.setpriority, os.PRIO_PROCESS, 0, -20)
tried("real time", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50))
""",
    "signals to the first process": """
for number in range(1, 65):
    quietly(os.kill, 1, number)
    call(234, 131, 1, 1, number)
    quietly(lambda: signal.pidfd_send_signal(os.pidfd_open(1), number))
""",
    "every process that can be named": """
for number in range(2, 40000):
    if number not in (os.getpid(), os.getppid()): quietly(os.kill, number, signal.SIGKILL)
""",
    "a socket of the guest's": """
names = {line.split()[-1] for line in open("/proc/net/unix") if "/" in line or "@" in line}
names |= set(glob.glob("/tmp/**/guest", recursive=True)) | set(glob.glob("/run/**", recursive=True))
for name in names:
    for address in (name, "\\0" + name.lstrip("@")): quietly(ask, socket.AF_UNIX, address)
""",
    # -- networks -----------------------------------------------------------------------------------------------------
    "this machine's own addresses": """
for address in (*given["addresses"], "127.0.0.1", "127.0.0.53", "0.0.0.0", "10.0.2.2", "172.17.0.1", "192.168.1.1"):
    quietly(ask, socket.AF_INET, (address, given["port"]))
for address in ("::1", "::", "fe80::1"): quietly(ask, socket.AF_INET6, (address, given["port"]))
""",
    "metadata addresses": """
for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192"):
    quietly(ask, socket.AF_INET, (address, 80))
quietly(ask, socket.AF_INET6, ("fd00:ec2::254", 80))
""",
    "the internet": """
for address, port in (("1.1.1.1", 53), ("8.8.8.8", 443)): quietly(ask, socket.AF_INET, (address, port))
tried("a name", socket.getaddrinfo, "example.com", 80)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there: tried("a datagram", there.sendto, b"x", ("1.1.1.1", 53))
print([name for _, name in socket.if_nameindex() if name != "lo" and taken(name)])
""",
    "sockets that no namespace keeps apart": """
for name in ("AF_VSOCK", "AF_PACKET", "AF_ALG", "AF_BLUETOOTH", "AF_TIPC", "AF_CAN", "AF_RDS", "AF_QIPCRTR"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        tried(name, socket.socket, getattr(socket, name, 40), kind)
tried("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
""",
    "abstract sockets": """
for name in (given["name"], "victim", "/tmp/.X11-unix/X0", "/tmp/.X11-unix/X1", "/tmp/.ICE-unix/1", "/org/bluez/agent"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as there: tried(f"abstract {name}", there.connect, "\\0" + name)
""",
    "services of another session": """
for port in (8000, 5900, 5901, 6000, 6001, 22, 80, 8080): quietly(ask, socket.AF_INET, ("127.0.0.1", port))
""",
    "the X server of another session": """
for number in range(10):
    for path in (f"/tmp/.X11-unix/X{number}", f"/run/flywheel-vnc-{number}/socket"): quietly(ask, socket.AF_UNIX, path)
    try: ran = subprocess.run(["xwininfo", "-root", "-display", f":{number}"], capture_output=True)
    except OSError: continue
    if ran.returncode == 0: taken(f"display :{number}")
""",
    "files of another session": """
for top in ("/home/user/victim.txt", "/home/*/*", "/tmp/*", "/dev/shm/*", "/run/*"):
    for path in glob.glob(top): show(path)
""",
    "memory that is shared by a number or a name": """
for line in open("/proc/sysvipc/shm").read().splitlines()[1:]: taken(line)
for key in (given["key"],): tried("shmget", libc.shmget, key, 64, 0)
show("/dev/shm/" + given["name"])
""",
    # -- the kernel ---------------------------------------------------------------------------------------------------
    "keys of this user": """
for ring in (-1, -2, -3, -4, -5): tried(f"keyring {ring}", call, 250, 219, 0, ring, 0)
tried("add_key", call, 248, 217, b"user", b"mine", b"x", 1, -3)
tried("request_key", call, 249, 218, b"user", b"flywheel", None, 0)
""",
    "calls that agents do not need": """
empty = ctypes.create_string_buffer(256)
for name, x86, arm, words in (("bpf", 321, 280, (0, empty, 72)), ("perf_event_open", 298, 241, (empty, 0, -1, -1, 0)),
    ("userfaultfd", 323, 282, (0,)), ("io_uring_setup", 425, 425, (8, empty)), ("syslog", 103, 116, (3, empty, 256)),
    ("init_module", 175, 105, (empty, 0, empty)), ("kexec_load", 246, 104, (0, 0, None, 0)),
    ("sethostname", 170, 161, (b"mine", 4))):
    tried(name, call, x86, arm, *words)
tried("the clock", time.clock_settime, time.CLOCK_REALTIME, time.time())
""",
    "calls by other numbers": """
for number in (0x40000000 + 250, 0x40000000 + 41):
    child = os.fork()  # which may be ended for it
    if child: os.waitpid(child, 0)
    else: tried(f"x32 {number}", libc.syscall, number, 0, -3, 0); os._exit(0)
""",
    "keys typed for others": """
for path in ("/dev/tty", "/dev/console", "/dev/pts/0", "/dev/pts/1", "/dev/ptmx"):
    try: there = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError: continue
    tried(f"TIOCSTI {path}", fcntl.ioctl, there, 0x5412, b"x")
    tried(f"TIOCLINUX {path}", fcntl.ioctl, there, 0x541C, b"\\3")
""",
    "more rights": """
text = open("/proc/self/status").read()
if "NoNewPrivs:\\t1" not in text: taken("new privileges")
if any(int(line.split()[1], 16) for line in text.splitlines() if line.startswith("Cap")): taken("capabilities")
if os.getuid() == 0 or os.geteuid() == 0: taken("root")
for number in (0, 1, 65534): tried(f"user {number}", os.setuid, number)
for words in (["su", "-c", "id"], ["sudo", "-n", "id"], ["mount"], ["newgrp", "root"]):
    apart = {"capture_output": True, "stdin": subprocess.DEVNULL, "start_new_session": True, "timeout": 2}
    try: ran = subprocess.run(words, text=True, **apart)
    except (OSError, subprocess.TimeoutExpired): continue
    if "uid=0" in ran.stdout: taken(words)
""",
    # -- what reads from outside --------------------------------------------------------------------------------------
    "links that lead outside": """
for number, path in enumerate((given["secret"], given["folder"], "/", "/root", "../../../../../..", "/proc/self/fd/3")):
    os.symlink(path, f"link-{number}")
    os.symlink(path + given["secret"], f"road-{number}")
    os.makedirs(f"folder-{number}"); os.symlink(path, f"folder-{number}/in")
quietly(lambda: os.link("/etc/passwd", "hard"))
""",
    "names that are no text": """
for name in (b"\\xff\\xfe", b"a\\nb", b"\\x1b[2J", b"\\xed\\xa0\\x80", b"x" * 254, b"-rf", b"~", b"$(id)"):
    open(name, "w").close(); os.makedirs(name + b"d")
""",
    "pipes, sockets and holes": """
os.mkfifo("pipe"); socket.socket(socket.AF_UNIX).bind("socket")
with open("huge", "wb") as file: file.truncate(2**40)
with open("holes", "wb") as file: file.seek(2**39); file.write(b"x")
""",
    "folders without end": """
for _ in range(1500):
    os.mkdir("d"); os.chdir("d")
""",
    "a home that is gone": """
home = os.path.expanduser("~")
os.chdir("/"); os.chmod(home, 0)
for name in os.listdir("/home"): tried("the home itself", os.rmdir, f"/home/{name}")
os.chmod(home, 0o700); subprocess.run(["rm", "-rf", home], capture_output=True)
""",
}

END = "print('RAN TO ITS END')\n"

# Each goes on until its machine ends.
BOMBS: dict[str, str] = {
    "a fork bomb": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try: os.fork()
    except OSError: pass
""",
    "threads without end": """
import threading
while True:
    try: threading.Thread(target=time.sleep, args=(999,), daemon=True).start()
    except RuntimeError: time.sleep(0.01)
""",
    "memory without end": """
kept = []
while True: kept.append(b"x" * 2**24)
""",
    "memory without end in many": """
for _ in range(8):
    if os.fork() == 0: break
kept = []
while True:
    try: kept.append(os.urandom(2**20) * 8)
    except MemoryError: time.sleep(0.01)
""",
    "disks filled": """
for place in (".", "/tmp", "/dev/shm", "/run", "/var/tmp", "/", "/dev"):
    try:
        with open(place + "/fill", "wb") as file:
            while True: file.write(b"x" * 2**20); file.flush()
    except OSError: pass
hidden = os.memfd_create("fill")
while True: quietly(os.write, hidden, b"x" * 2**20)
""",
    "files without end": """
number = 0
while True:
    number += 1
    try: open(f"f{number}", "w").close()
    except OSError: time.sleep(0.01)
""",
    "a file that grows while it is read": """
while True:
    with open("grows", "ab") as file:
        try: file.write(b"x" * 2**16)
        except OSError: file.truncate(0)
""",
    "a folder that is a link in turn": """
os.makedirs("real"); open("real/secret", "w").close()
while True:
    os.symlink(given["folder"], "turn"); os.remove("turn")
    os.rename("real", "turn"); os.rename("turn", "real")
""",
    "a file that is a link in turn": """
while True:
    open("turn", "w").close(); os.remove("turn")
    os.symlink(given["secret"], "turn"); os.remove("turn")
""",
    "processors": """
for _ in range(64):
    if os.fork() == 0: break
while True: pass
""",
    "output without end": """
while True: sys.stdout.write("x" * 2**16)
""",
    "watches of files without end": """
made = 0
while libc.inotify_init() >= 0: made += 1
if made > 100: taken(f"{made} of this user's watches")
while True: time.sleep(9)
""",
    "connections to all that listens": """
kept = []
while True:
    try:
        one = socket.socket(); one.bind(("127.0.0.1", 0)); one.listen(); kept.append(one)
    except OSError: time.sleep(0.01)
""",
}
