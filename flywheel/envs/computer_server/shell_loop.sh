# What runs a session's shell: a mark and a command by a pipe, one after another, in one bash. See `shell.py`.
# Ctrl-C ends the command and whatever stood behind it, and not the shell; nothing stops it half-way.
exec 3<&"$2"
eval "exec $2<&-"
shift 2
trap 'continue 999' INT
trap : QUIT
trap '' TSTP
while [ -z "$__mark" ] || printf '\033]%s %d %s\007' "$__mark" "$__status" "$PWD" >/dev/tty
    IFS= read -r -d '' __mark <&3 && IFS= read -r -d '' __command <&3; do
    __status=130
    eval "$__command" 3<&-
    __status=$?
done
