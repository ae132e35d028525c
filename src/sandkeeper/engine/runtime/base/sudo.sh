#!/bin/sh
# Runs a command as another user of this sandbox, without a password.
# Root of a sandbox has no rights outside of it.

helper=/usr/libexec/sandkeeper/setpriv
secure_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
kept="COLORTERM DISPLAY HOSTNAME LANG LANGUAGE LC_ALL LC_CTYPE LS_COLORS TERM TZ XAUTHORITY"

fail() {
  echo "sudo: $1" >&2
  exit 1
}

usage() {
  echo "usage: sudo [-EHnS] [-u user] [-g group] [-D directory] [-i | -s] [VAR=value] [command ...]"
}

target=root group='' folder='' keep='' login='' shell='' home_of_target='' no_command=''
while getopts ':AbBC:D:Eeg:HhiKklnPp:Sst:r:T:u:Vv-:' option; do
  case $option in
    u) target=$OPTARG ;;
    g) group=$OPTARG ;;
    D) folder=$OPTARG ;;
    E) keep=1 ;;
    H) home_of_target=1 ;;
    i) login=1 ;;
    s) shell=1 ;;
    k | K | v) no_command=1 ;;
    A | b | B | C | n | P | p | S | t | r | T) ;;
    h) usage; exit 0 ;;
    V) echo "Sudo of a Sandkeeper sandbox"; exit 0 ;;
    l) echo "User $(id -un) may run every command on this sandbox: (ALL : ALL) NOPASSWD: ALL"; exit 0 ;;
    -)
      case $OPTARG in
        user=*) target=${OPTARG#*=} ;;
        group=*) group=${OPTARG#*=} ;;
        chdir=*) folder=${OPTARG#*=} ;;
        user | group | chdir)
          eval "value=\${$OPTIND-}"
          OPTIND=$((OPTIND + 1))
          case $OPTARG in user) target=$value ;; group) group=$value ;; chdir) folder=$value ;; esac
          ;;
        preserve-env) keep=1 ;;
        preserve-env=*) kept="$kept $(echo "${OPTARG#*=}" | tr , ' ')" ;;
        set-home) home_of_target=1 ;;
        login) login=1 ;;
        shell) shell=1 ;;
        validate | reset-timestamp | remove-timestamp) no_command=1 ;;
        non-interactive | stdin | background | askpass) ;;
        help) usage; exit 0 ;;
        version) echo "Sudo of a Sandkeeper sandbox"; exit 0 ;;
        *) usage >&2; fail "unrecognized option '--$OPTARG'" ;;
      esac
      ;;
    *) usage >&2; fail "invalid option -- '$OPTARG'" ;;
  esac
done
shift $((OPTIND - 1))

line=$(getent passwd "${target#\#}") || fail "unknown user $target"
IFS=: read -r name _password uid gid _comment home own_shell <<END
$line
END
own_shell=${own_shell:-/bin/sh}

if [ "$login" ]; then
  folder=${folder:-$home}
  if [ $# -gt 0 ]; then set -- "$own_shell" -l -c "$*"; else set -- "$own_shell" -l; fi
elif [ "$shell" ]; then
  if [ $# -gt 0 ]; then set -- "${SHELL:-$own_shell}" -c "$*"; else set -- "${SHELL:-$own_shell}"; fi
elif [ $# -eq 0 ]; then
  [ "$no_command" ] && exit 0
  usage >&2
  exit 1
fi

command=$*
if [ "$keep" ] && [ ! "$login" ]; then
  [ "$home_of_target" ] && set -- "HOME=$home" "$@"
else
  for variable in $kept; do
    if eval "[ \"\${$variable+set}\" ]"; then
      eval "set -- \"$variable=\$$variable\" \"\$@\""
    fi
  done
  set -- "HOME=$home" "SHELL=$own_shell" "$@"
fi
set -- "PATH=$secure_path" "USER=$name" "LOGNAME=$name" "SUDO_COMMAND=$command" "$@"
set -- "SUDO_USER=$(id -un)" "SUDO_UID=$(id -u)" "SUDO_GID=$(id -g)" "$@"
[ "$folder" ] && set -- "--chdir=$folder" "$@"
[ "$keep" ] && [ ! "$login" ] || set -- -i "$@"

if [ -x "$helper" ]; then
  if [ "$(id -u)" != 0 ] && ! "$helper" --reuid=0 true 2>/dev/null; then
    fail "this sandbox does not let a program change its user: run the command as root instead"
  fi
  exec "$helper" --reuid="$uid" --regid="${group:-$gid}" --init-groups env "$@"
fi
# Only one id is mapped, so every user is the same one.
exec env "$@"
