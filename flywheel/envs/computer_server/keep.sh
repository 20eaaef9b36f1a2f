# What a shell holds, as a script that another one runs: options, variables, functions, aliases, its folder last. `$1`:
# the file. Run by the shell itself, in a shell below it, so that nothing of it changes. See `keeping.py`.
(
    exec >"$1" 2>/dev/null
    shopt -p
    set +o
    declare -p IFS
    set +eu
    IFS=$'\n'
    umask -p
    alias -p
    for __name in $(compgen -v); do
        case $__name in
            __* | BASH* | COMP_* | DIRSTACK | EPOCH* | EUID | FUNCNAME | GROUPS | HISTCMD | IFS | LINENO | PIPESTATUS) ;;
            PPID | RANDOM | SECONDS | SHELLOPTS | SRANDOM | UID | PWD | _) ;;
            *) declare -p "$__name" ;;
        esac
    done
    declare -f
    shift
    printf 'set --'
    printf ' %q' "$@"
    printf '\n'
    printf 'cd -- %q\n' "$PWD"
)
