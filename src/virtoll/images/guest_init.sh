#!/bin/busybox sh
# First process of a guest: load the drivers, mount the disk, become the agent. /devices names the disk and the
# agent's device.
# Everything printed here lands in the instance's console log.
b=/bin/busybox
fail() { echo "virtoll: $*"; $b reboot -f; }

read -r disk device </devices
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module" || fail "the kernel refuses $module"; done </modules/order

$b mount -t proc proc /proc
if $b grep -qw virtoll.probe /proc/cmdline; then
    echo "virtoll: the guest has booted"
    $b reboot -f
fi
$b umount /proc

tries=0
until [ -b "$disk" ]; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || fail "no disk $disk: does this kernel have its driver?"
    $b usleep 10000
done
$b mount -t ext4 "$disk" /root || fail "the disk cannot be mounted: does this kernel have ext4?"
[ -x /root/virtoll/agent ] || fail "no /virtoll/agent on the disk: remove the image from the cache and build it again"
$b mkdir -p /root/dev
$b mount --move /dev /root/dev
exec $b switch_root /root /virtoll/agent serve --init --device "$device"
