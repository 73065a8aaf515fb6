# Runs as root in the computer that test_debian.py boots, with virtoll's checkout at /host$CHECKOUT.
#
# A Debian server in use: the user's own Docker container, LXC container with its bridge, and firewall. virtoll runs a
# study there, and /out/before and /out/after show whether anything of the user's is another one then.
set -eu

wait_for() {  # SECONDS COMMAND...
    left=$1; shift
    until "$@" >/dev/null 2>&1; do
        left=$((left-1))
        [ "$left" -gt 0 ] || { echo "still not: $*"; exit 1; }
        sleep 1
    done
}

users_web() { curl --silent --fail --max-time 20 http://127.0.0.1:8080/; }
users_lxc() { curl --silent --fail --max-time 20 "http://$lxc_address/"; }

# --- what the user has ---------------------------------------------------------------------------------------

mkdir -p /srv/users/bin /srv/users/www
cp /bin/busybox /srv/users/bin/
echo "the user's own page" >/srv/users/www/index.html
wait_for 300 docker info
tar -C /srv/users -c . | docker import - users/web >/dev/null
docker run --detach --name users-web --restart always --publish 8080:80 users/web \
    /bin/busybox httpd -f -h /www >/dev/null
lxc-create --name users-lxc --template busybox >/dev/null
mkdir -p /var/lib/lxc/users-lxc/rootfs/www
echo "the user's own container" >/var/lib/lxc/users-lxc/rootfs/www/index.html
lxc-start --name users-lxc
wait_for 300 sh -c 'lxc-info -n users-lxc -iH | grep -q .'
lxc_address=$(lxc-info -n users-lxc -iH | head -1)
lxc-attach --name users-lxc -- /bin/busybox httpd -h /www
nft -f - <<'END'
table inet users {
    set friends { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 } }
    chain input { type filter hook input priority -5; policy accept; ip saddr @friends tcp dport 22 accept; }
}
END
wait_for 300 users_web
wait_for 300 users_lxc

# --- what virtoll is to leave as it is ---------------------------------------------------------------------

said() { echo "== $1"; shift; "$@" 2>&1 || true; }

inventory() {
    said docker docker ps --all --no-trunc --format '{{.ID}} {{.Names}} {{.Image}}'
    said images docker images --no-trunc --quiet
    said networks docker network ls --no-trunc --format '{{.ID}} {{.Name}}'
    said started docker inspect --format '{{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}}' users-web
    said lxc lxc-ls --fancy
    said lxc-pid lxc-info -n users-lxc -pH
    said web users_web
    said lxc-web users_lxc
    said nft sh -c "nft list ruleset | sed -E 's/counter packets [0-9]+ bytes [0-9]+/counter/'"
    said links sh -c "ip -oneline link | sed -E 's/^[0-9]+: //'"
    said addresses sh -c "ip -oneline -family inet address | sed -E 's/ valid_lft.*//'"
    said routes ip route show table all
    said rules ip rule
    said netns ip netns list
    said mounts sh -c "findmnt --raw --noheadings --output TARGET,SOURCE,FSTYPE | sort"
    said loops losetup --list --noheadings
    said cgroups sh -c "find /sys/fs/cgroup -type d | grep -v -E '/(user|system).slice/.*\\.(service|scope|slice)' | sort"
    said units sh -c "systemctl list-units --no-legend --plain --state=running --type=service,socket | cut -d' ' -f1 | sort"
    said failed systemctl --failed --no-legend --plain
    said profiles sort /sys/kernel/security/apparmor/profiles
    said settings sh -c "sysctl --all 2>/dev/null | grep -E '^(net\\.(ipv4|ipv6|bridge|core)|kernel\\.(pid_max|threads-max)|vm\\.)' | grep -v -E '$volatile'"
    said files sh -c "find /etc /root /home /opt /usr/local /var/lib/lxc /var/lib/docker -xdev -printf '%p %s %m %u %l\\n' | grep -v -E '/var/lib/docker/containers/.*(-json.log|/config.v2.json)' | sort"
}
volatile='vm\.(stat_refresh|drop_caches|compact_memory)|nf_conntrack_count|route\.flush|tcp_fastopen_key|stable_secret'

inventory >/out/before

# --- virtoll -------------------------------------------------------------------------------------------------

export PYTHONPATH="$SITE:$CHECKOUT/src:$CHECKOUT/tests" PYTHONDONTWRITEBYTECODE=1 HOME=/root
cache=/var/cache/virtoll/images
mkdir -p -m 700 /var/cache/virtoll $cache
for image in $IMAGES; do mkdir "$cache/$image"; mount --bind "$IMAGES_FROM/$image" "$cache/$image"; done
status=0
virtoll() { python3 -c "import nested.patience; from virtoll.__main__ import main; main()" "$@"; }
virtoll doctor >/out/doctor 2>&1 || true
mkdir -p /root/runs
virtoll run /in/study.toml --out /root/runs/nested >/out/run.log 2>&1 || status=$?
for image in $IMAGES; do umount "$cache/$image"; done
cp -r /root/runs/nested /out/run || true
rm -rf /root/runs
echo "virtoll run: $status"
inventory >/out/after
