#!/bin/bash
# The image without a docker engine, and its demo in a sandbox, as root on a Debian machine with the packages buildah
# and debootstrap:
#   deploy/image/build.sh base             a base image: Debian bookworm with Python 3.11, made by debootstrap
#   deploy/image/build.sh image [OPTION…]  the Dockerfile on that base; OPTIONs are buildah's (--secret, --volume)
#   deploy/image/build.sh run [WORD…]      `meltpoint demo` (or WORD…) in it: user 10001, read-only root, no network
#   deploy/image/build.sh clean            removes both images
# MIRROR is a Debian mirror (by default the one that apt uses here), BASE the base's name, IMAGE the image's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

: "${BASE:=localhost/meltpoint-base}" "${IMAGE:=localhost/meltpoint}" "${WORK:=${TMPDIR:-/tmp}}"

mirror() {
    # shellcheck disable=SC2016 # apt's variable
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep --max-count=1 --invert-match security
}

base() {
    local folder container
    folder=$(mktemp --directory "$WORK/meltpoint-base.XXXXXX")
    trap 'rm -rf --one-file-system "$folder"' RETURN
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder" \
        "${MIRROR:-$(mirror)}"
    ln -s python3 "$folder/usr/bin/python" # as the images of Python have it
    rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$folder" /
    buildah config --cmd bash "$container"
    buildah commit --quiet --rm "$container" "$BASE"
}

image() {
    buildah bud --isolation chroot --network host --layers --format docker \
        --build-arg "BASE=$BASE" --tag "$IMAGE" "$@" .
}

# The process gets a network namespace in which only its own loopback is up (Ray's processes talk over it), a mount
# namespace in which the image is read-only but for what a container's user may write, and no other user's rights.
run() {
    local container root
    container=$(buildah from "$IMAGE")
    root=$(buildah mount "$container")
    trap 'buildah rm "$container" >/dev/null' RETURN
    if [ $# -eq 0 ]; then set -- meltpoint demo; fi
    # shellcheck disable=SC2016 # the inner shell's
    unshare --net --mount --pid --ipc --uts --fork --kill-child bash -euc '
        root=$1
        shift
        ip link set lo up
        mount --bind "$root" "$root"
        mount --options remount,bind,ro "$root"
        mount --types proc proc "$root/proc"
        mount --rbind --make-rslave /dev "$root/dev"
        mount --types tmpfs --options size=2g,mode=1777 shm "$root/dev/shm"
        for place in tmp home/meltpoint srv/meltpoint/runs srv/huggingface; do
            mount --types tmpfs --options uid=10001,gid=10001,mode=0755 tmpfs "$root/$place"
        done
        if chroot "$root" touch /etc/written 2>/dev/null; then echo "the root is not read-only" >&2; exit 1; fi
        exec chroot --userspec=10001:10001 "$root" /usr/bin/env --ignore-environment --chdir=/srv/meltpoint \
            HOME=/home/meltpoint PATH=/opt/meltpoint/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HF_HOME=/srv/huggingface \
            HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 GIT_PYTHON_REFRESH=quiet "$@"
    ' bash "$root" "$@"
}

clean() {
    buildah rmi "$IMAGE" "$BASE"
}

case "${1:-}" in
base | image | run | clean) "$@" ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
