#!/bin/sh
# Checks what runs Tieline as a service. The rc script is run, from start to stop, against stubs
# of rc.subr(8), daemon(8) and tieline; units are checked by systemd-analyze; all shell scripts
# by the shells and by shellcheck. What is not installed is not checked with, and said so.
#
#   TIELINE_TEST_RC_SUBR   a FreeBSD rc.subr to take instead of the stub: see real_rc_subr
set -eu

cd -- "$(dirname -- "$0")/.."
scratch=$(mktemp -d)
log=$scratch/log
failures=0

main() {
    trap clean_up EXIT
    lint
    units
    make_stubs
    rc_script
    [ "$failures" -eq 0 ] || { echo "$failures failed" >&2; exit 1; }
}

# ---- lint

lint() {
    for script in .ci/run tests/*.sh freebsd-rc/*; do
        shell=$(sed -n '1s/.*[/ ]//p' "$script")
        check "$shell reads $script" "$shell" -n "$script"
        # In rc scripts: what rc.subr sets and reads, and its way to write defaults (SC2223). Here:
        # text for other shells.
        check "shellcheck of $script" optional shellcheck -e SC1091,SC2016,SC2034,SC2154,SC2223 "$script"
    done
    check "dash reads the rc script" optional dash -n freebsd-rc/tieline
}

units() {
    mkdir "$scratch/units"
    for unit in systemd/*; do
        # The program is not installed where this runs; all else in the unit is checked.
        sed -E 's|^(Exec[A-Za-z]+=)/usr/local/bin/tieline|\1/bin/true|' "$unit" >"$scratch/units/${unit##*/}"
    done
    check "units are right" silent optional systemd-analyze verify --man=no "$scratch"/units/*
    for unit in systemd/*.service; do
        sed -n '/^# Hardening/,/^$/{/./p;}' "$unit" >"$scratch/${unit##*/}.hardening"
        # In tenths: the exposure is below 2.0.
        check "exposure of $unit" optional systemd-analyze security --offline=true --threshold=19 "$unit"
        grep 'Overall exposure' "$scratch/out" || true
    done
    check "both services are hardened alike" cmp "$scratch"/*.hardening
}

# A value that it does not know is but a warning to systemd-analyze.
silent() {
    "$@" && [ ! -s "$scratch/out" ]
}

optional() {
    if command -v "$1" >/dev/null; then
        "$@"
    else
        echo "not checked with $1, which is not installed" >&3
    fi
}

# ---- the rc script

rc_script() {
    daemon="daemon -c -f -R 10 -P $scratch/run/daemon.pid -p $scratch/run/tieline.pid -t tieline -S -T tieline \
-l daemon -s info"
    tieline="$scratch/bin/tieline --config $scratch/peers.yaml"
    run="--state-dir $scratch/state -v run"
    checked="tieline --config $scratch/peers.yaml check"

    settings 'tieline_enable=NO'
    expect 0 'Set tieline_enable to YES' start
    logged ''

    settings 'tieline_enable=YES'
    expect 1 'not running' status
    expect 1 'not running' stop
    expect 1 'not running' reload
    logged "su -m daemon -c sh -c '$tieline check'" "$checked"

    expect 0 'good' configtest
    logged "su -m daemon -c sh -c '$tieline check'" "$checked"

    echo mistake >"$scratch/peers.yaml"
    expect 1 'a mistake' configtest
    expect 1 'a mistake' start
    expect 1 'not running' status
    echo good >"$scratch/peers.yaml"

    settings 'tieline_enable=YES' 'tieline_user=no-such-user'
    expect 1 'no user no-such-user' start
    settings 'tieline_enable=YES'

    : >"$log"
    expect 0 '' start
    wait_for "$scratch/run/tieline.pid"
    logged "su -m daemon -c sh -c '$tieline check'" "$checked" \
        "install -d -o daemon -m 755 $scratch/run" "install -d -o daemon -m 700 $scratch/state" \
        "su -m daemon -c sh -c \"$scratch/bin/$daemon $tieline $run\"" "$daemon $tieline $run" \
        "${tieline##*/bin/} $run"
    supervisor=$(cat "$scratch/run/daemon.pid") child=$(cat "$scratch/run/tieline.pid")
    expect 0 "running as pid $child" status
    expect 1 'already running' start

    : >"$log"
    expect 0 '' reload
    wait_for_line 'reloaded'
    logged "su -m daemon -c sh -c '$tieline check'" "$checked" \
        "su -m daemon -c sh -c 'kill -HUP $child'" 'reloaded'
    check 'reload leaves daemon(8) alone' kill -0 "$supervisor"

    echo mistake >"$scratch/peers.yaml"
    : >"$log"
    expect 1 'a mistake' reload
    logged "su -m daemon -c sh -c '$tieline check'" "$checked"
    expect 1 'a mistake' restart
    expect 0 "running as pid $child" status
    echo good >"$scratch/peers.yaml"

    kill -9 "$child"
    wait_for_line 'restarting'
    expect 1 'about to be started again' status
    rm "$scratch/run/tieline.pid"
    touch "$scratch/restart"
    wait_for "$scratch/run/tieline.pid"
    expect 0 "running as pid $(cat "$scratch/run/tieline.pid")" status

    : >"$log"
    expect 0 '' restart
    check 'restart waits for the end' grep -qx 'drained' "$log"
    wait_for "$scratch/run/tieline.pid"
    expect 0 "running as pid $(cat "$scratch/run/tieline.pid")" status

    supervisor=$(cat "$scratch/run/daemon.pid") child=$(cat "$scratch/run/tieline.pid")
    : >"$log"
    expect 0 'Stopping tieline' stop
    check 'stop waits for the end' grep -qx 'drained' "$log"
    check 'daemon(8) has ended' not kill -0 "$supervisor"
    check 'tieline has ended' not kill -0 "$child"
    expect 1 'not running' status

    expect 0 '' start
    wait_for "$scratch/run/tieline.pid"
    child=$(cat "$scratch/run/tieline.pid")
    kill -9 "$(cat "$scratch/run/daemon.pid")"
    expect 1 "kill $child first" start
    kill "$child"
}

settings() {
    printf '%s\n' "$@" 'tieline_flags=-v' ': ${tieline_user:=daemon}' \
        "tieline_config=$scratch/peers.yaml" "tieline_state_dir=$scratch/state" \
        "tieline_binary=$scratch/bin/tieline" >"$scratch/rc.conf"
    echo good >"$scratch/peers.yaml"
}

# expect CODE TEXT COMMAND: what `service tieline COMMAND` ends with and says.
expect() {
    code=0
    service "$3" >"$scratch/out" 2>&1 || code=$?
    if [ "$code" -eq "$1" ] && grep -qF -- "$2" "$scratch/out"; then
        echo "ok: $3: $1 $2"
    else
        fail "$3: expected $1 and '$2', got $code and:"
    fi
}

service() {
    PATH=$scratch/bin:$PATH sh "$scratch/rc.d/tieline" "$1" 3>&-
}

# logged LINE...: what the stubs noted since the last call, in this order.
logged() {
    printf '%s\n' "$@" | sed '/^$/d' >"$scratch/expected"
    tr -s ' ' <"$log" >"$scratch/noted"
    check "it runs: $(tail -n 1 "$scratch/expected")" diff -u "$scratch/expected" "$scratch/noted"
    : >"$log"
}

wait_for() {
    within_seconds 5 test -s "$1"
}

wait_for_line() {
    within_seconds 5 grep -qx -- "$1" "$log"
}

within_seconds() {
    tries=$(($1 * 10))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { : >"$scratch/out"; fail "in vain: $*"; return; }
        sleep 0.1
    done
}

# ---- stubs

make_stubs() {
    mkdir "$scratch/bin" "$scratch/rc.d"
    : >"$log"
    sed -e "s|/etc/rc.subr|$scratch/rc.subr|; s|/usr/sbin/|$scratch/bin/|; s|/var/run/tieline|$scratch/run|" \
        freebsd-rc/tieline >"$scratch/rc.d/tieline"
    if [ -n "${TIELINE_TEST_RC_SUBR:-}" ]; then
        real_rc_subr >"$scratch/rc.subr"
    else
        rc_subr >"$scratch/rc.subr"
    fi
    stub su <<'STUB'
sh -c "$4"
STUB
    stub install <<'STUB'
mkdir -p "$6"
STUB
    # As daemon(8) of FreeBSD 13 it does not wait for what it started; it starts it again when
    # the test says so.
    stub daemon <<'STUB'
while getopts cfR:P:p:t:ST:l:s: option; do
    case $option in
        P) supervisor_pidfile=$OPTARG ;;
        p) child_pidfile=$OPTARG ;;
    esac
done
shift $((OPTIND - 1))
supervise() {
    trap 'kill $child; rm -f "$supervisor_pidfile" "$child_pidfile"; exit 1' TERM
    while :; do
        "$@" &
        child=$!
        echo "$child" >"$child_pidfile"
        wait "$child"
        echo restarting >>"$log"
        until [ -e "$scratch/restart" ]; do sleep 0.1; done
        rm "$scratch/restart"
    done
}
supervise "$@" </dev/null >/dev/null 2>&1 &
echo $! >"$supervisor_pidfile"
STUB
    stub tieline <<'STUB'
for command; do :; done
case $command in
    check)
        read -r config <"$2"
        [ "$config" = good ] || { echo "a mistake"; exit 2; }
        echo "good"
        ;;
    run)
        trap 'echo reloaded >>"$log"' HUP
        trap 'sleep 1; echo drained >>"$log"; exit' TERM
        while :; do sleep 0.1; done
        ;;
esac
STUB
}

# stub NAME: a program that notes how it was run, and does what standard input says.
stub() {
    {
        printf '#!/bin/sh\nscratch=%s\nlog=%s\n' "$scratch" "$log"
        printf 'echo "%s $*" >>"$log"\n' "$1"
        cat
    } >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}

# What the rc script needs of rc.subr(8), as its manual describes it.
rc_subr() {
    cat <<STUB
rc_conf=$scratch/rc.conf
STUB
    cat <<'STUB'
load_rc_config() { . "$rc_conf"; }

check_pidfile() {
    [ -s "$1" ] && read -r _pid <"$1" || return 0
    ps -ww -o args= -p "$_pid" | grep -qF -- "$2" && echo "$_pid"
    return 0
}

wait_for_pids() {
    for _pid; do
        while kill -0 "$_pid" 2>/dev/null; do sleep 0.1; done
    done
}

run_rc_command() {
    rc_service=$0
    rc_arg=$1
    eval "rc_flags=\$${name}_flags _user=\$${name}_user _enabled=\$$rcvar"
    eval "_cmd=\$${1}_cmd _precmd=\$${1}_precmd _postcmd=\$${1}_postcmd"
    rc_pid=$(check_pidfile "$pidfile" "$command")
    case " start stop restart status $extra_commands " in
        *" $1 "*) ;;
        *) echo "unknown directive $1"; exit 1 ;;
    esac
    if [ "$_enabled" != YES ] && [ "$1" != status ]; then
        echo "Cannot '$1' $name. Set $rcvar to YES in /etc/rc.conf"
        return 0
    fi
    if [ -n "$_cmd" ]; then
        $_precmd
        $_cmd || return 1
        $_postcmd
        return
    fi
    case $1 in
        start)
            [ -z "$rc_pid" ] || { echo "$name already running? (pid=$rc_pid)."; return 1; }
            $_precmd || return 1
            su -m "$_user" -c "sh -c \"$command $rc_flags $command_args\""
            ;;
        stop)
            [ -n "$rc_pid" ] || { echo "$name not running? (check $pidfile)."; return 1; }
            $_precmd || return 1
            echo "Stopping $name."
            su -m "$_user" -c "sh -c \"kill -TERM $rc_pid\""
            wait_for_pids "$rc_pid"
            ;;
        restart)
            $_precmd || return 1
            (run_rc_command stop)
            (run_rc_command start) || return 1
            _postcmd=
            ;;
    esac
    $_postcmd
}
STUB
}

# FreeBSD's own, with the config file of this place, and its ps and limits stood in for: this ps
# knows no jails, and shows a stub as `sh`.
real_rc_subr() {
    cat >"$scratch/bin/bsd-ps" <<'STUB'
#!/bin/sh
case $* in
    *command=*) for pid; do :; done; ps -ww -o pid= -o args= -p "$pid" | sed 's|^ *\([0-9]*\) /bin/sh|\1 0|' ;;
    *) echo 0 ;;
esac
STUB
    printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$scratch/bin/limits"
    printf '#!/bin/sh\n' >"$scratch/bin/kenv"
    chmod +x "$scratch/bin/bsd-ps" "$scratch/bin/limits" "$scratch/bin/kenv"
    sed -e "s|/etc/defaults/rc.conf|$scratch/rc.conf|; s|source_rc_confs\$|:|; s|^PS=.*|PS=bsd-ps|" \
        "$TIELINE_TEST_RC_SUBR"
}

# ---- results

# check WHAT COMMAND...: the command succeeds; what it says is shown when it does not.
check() {
    what=$1
    shift
    if "$@" 3>&1 >"$scratch/out" 2>&1; then
        echo "ok: $what"
    else
        fail "$what:"
    fi
}

not() {
    ! "$@"
}

fail() {
    echo "FAILED: $1"
    cat "$scratch/out"
    failures=$((failures + 1))
}

clean_up() {
    for pidfile in "$scratch"/run/*.pid; do
        [ ! -s "$pidfile" ] || kill -9 "$(cat "$pidfile")" 2>/dev/null || true
    done
    rm -rf "$scratch"
}

main
