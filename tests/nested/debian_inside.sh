# Runs as root in the computer that test_debian.py boots, with virtoll's checkout at /host$CHECKOUT.
#
# A Debian server in use: the user's own Docker container, LXC container with its bridge, guest of libvirt's with its
# network, and firewall. virtoll is installed there from its wheel and runs a study, and /out/before and /out/after show
# whether anything of the user's is another one then.
set -eu

wait_for() {  # SECONDS COMMAND...
    left=$1; shift
    until "$@" >/dev/null 2>&1; do
        left=$((left-1))
        [ "$left" -gt 0 ] || { echo "still not: $*"; return 1; }
        sleep 1
    done
}

users_web() { curl --silent --fail --max-time 20 http://127.0.0.1:8080/; }
users_lxc() { curl --silent --fail --max-time 20 "http://$lxc_address/"; }
users_guest() { curl --silent --fail --max-time "${1:-20}" http://192.168.122.10/; }

# The user's guest: this kernel, its network card's drivers and busybox. It is emulated: under the KVM of a computer that
# is emulated itself guests hang by chance as they boot (test_kvm.py has one, in a computer of one CPU).
make_guest() {  # DIRECTORY
    mkdir -p "$1/root/bin" "$1/root/proc" "$1/root/www"
    cp /bin/busybox "$1/root/bin/"
    echo "the user's own guest" >"$1/root/www/index.html"
    {
        echo '#!/bin/busybox sh'
        for driver in virtio_pci virtio_net; do modprobe --show-depends $driver; done | while read -r insmod module _; do
            [ "$insmod" = insmod ] || continue
            cp "$module" "$1/root/"
            echo "/bin/busybox insmod /${module##*/}"
        done
        echo '/bin/busybox ip address add 192.168.122.10/24 dev eth0'
        echo '/bin/busybox ip link set eth0 up'
        echo 'exec /bin/busybox httpd -f -h /www'
    } >"$1/root/init"
    chmod 755 "$1/root/init"
    (cd "$1/root" && find . | cpio --quiet --create --format=newc) >"$1/initrd"
    cp -L /boot/vmlinuz-* "$1/vmlinuz"
    cat >"$1/guest.xml" <<END
<domain type='qemu'><name>users-guest</name><memory unit='MiB'>192</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type><kernel>$1/vmlinuz</kernel><initrd>$1/initrd</initrd>
<cmdline>console=ttyS0 cryptomgr.notests panic=-1</cmdline></os>
<devices><interface type='network'><source network='default'/><model type='virtio'/></interface>
<serial type='file'><source path='/var/log/libvirt/qemu/users-guest.console'/></serial></devices></domain>
END
}

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
virsh --quiet net-start default || virsh --quiet net-info default
make_guest /var/lib/libvirt/images/users
virsh --quiet define /var/lib/libvirt/images/users/guest.xml
virsh --quiet start users-guest
nft -f - <<'END'
table inet users {
    set friends { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 } }
    chain input { type filter hook input priority -5; policy accept; ip saddr @friends tcp dport 22 accept; }
}
END
wait_for 300 users_web
wait_for 300 users_lxc
wait_for 200 users_guest 3 || { cat /var/log/libvirt/qemu/users-guest.*; exit 1; }

# --- virtoll is installed ------------------------------------------------------------------------------------

export PYTHONPATH="/opt/virtoll:$SITE:$CHECKOUT/tests" PYTHONDONTWRITEBYTECODE=1 HOME=/root
python3 -m pip install --quiet --no-index --no-deps --root-user-action=ignore --target /opt/virtoll /in/virtoll-*.whl
/opt/virtoll/bin/virtoll --version >/out/version
python3 -c 'import virtoll; print(virtoll.__file__)' >>/out/version

# --- what virtoll is to leave as it is ---------------------------------------------------------------------

said() { echo "== $1"; shift; "$@" 2>&1 || true; }

inventory() {
    said docker docker ps --all --no-trunc --format '{{.ID}} {{.Names}} {{.Image}}'
    said images docker images --no-trunc --quiet
    said networks docker network ls --no-trunc --format '{{.ID}} {{.Name}}'
    said started docker inspect --format '{{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}}' users-web
    said lxc lxc-ls --fancy
    said lxc-pid lxc-info -n users-lxc -pH
    said guests virsh list --all
    said guests-networks virsh net-list --all
    said guest-pid cat /run/libvirt/qemu/users-guest.pid
    said web users_web
    said lxc-web users_lxc
    said guest-web users_guest
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

cache=/var/cache/virtoll/images
mkdir -p -m 700 /var/cache/virtoll $cache
for image in $IMAGES; do mkdir "$cache/$image"; mount --bind "$IMAGES_FROM/$image" "$cache/$image"; done
status=0
virtoll() { python3 -c "import nested.patience; from virtoll.__main__ import main; main()" "$@"; }
virtoll doctor >/out/doctor 2>&1 || true
mkdir -p /root/runs
cp /in/study.toml /root/study.toml
virtoll run /root/study.toml --out /root/runs/nested >/out/run.log 2>&1 || status=$?
for image in $IMAGES; do umount "$cache/$image"; done
cp -r /root/runs/nested /out/run || true
rm -rf /root/runs /root/study.toml
echo "virtoll run: $status"
wait_for 20 users_guest || true  # it may be slow
inventory >/out/after
virsh --quiet destroy users-guest  # else the computer waits for it as it ends
