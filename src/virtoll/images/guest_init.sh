#!/bin/busybox sh
# First process of a QEMU guest: load the drivers, mount the disk, become the agent.
# Everything printed here lands in the instance's console log.
b=/bin/busybox
fail() { echo "virtoll: $*"; $b reboot -f; }

$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
while read -r module; do $b insmod "/modules/$module" || fail "the kernel refuses $module"; done </modules/order

if $b grep -qw virtoll.probe /proc/cmdline; then
    echo "virtoll: the guest has booted"
    $b reboot -f
fi

tries=0
until [ -b /dev/vda ] && port=$($b grep -lx virtoll.agent /sys/class/virtio-ports/*/name 2>/dev/null); do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || fail "no disk /dev/vda or no port virtoll.agent: does this kernel have virtio_blk, virtio_console?"
    $b usleep 10000
done
port=${port%/name}
$b mount -t ext4 /dev/vda /root || fail "the disk cannot be mounted: does this kernel have ext4?"
[ -x /root/virtoll/agent ] || fail "no /virtoll/agent on the disk: remove the image from the cache and build it again"
$b umount /proc
$b umount /sys
$b mount --move /dev /root/dev
exec $b switch_root /root /virtoll/agent serve --init --device "/dev/${port##*/}"
