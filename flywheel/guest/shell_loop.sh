# What runs a session's shell: a mark and a command by a pipe, one after another, in one bash. See `shell.py`.
# The traps: Ctrl-C ends the command and not the shell, and nothing stops it half-way.
exec 3<&"$2"
eval "exec $2<&-"
shift 2
trap : INT QUIT
trap '' TSTP
while IFS= read -r -d '' __mark <&3 && IFS= read -r -d '' __command <&3; do
    eval "$__command" 3<&-
    __status=$?
    printf '\033]%s %d %s\007' "$__mark" $__status "$PWD" >/dev/tty
done
