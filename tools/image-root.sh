#!/bin/sh
# Makes all that the image has, out of a binary and this machine's list of authorities:
#
#	tools/image-root.sh BINARY FOLDER
#
# Containerfile's last stage is this folder and nothing else.
set -eu
binary=$1 dir=$2
authorities=/etc/ssl/certs/ca-certificates.crt
[ -s "$authorities" ] || { echo "image: $authorities is missing: install ca-certificates" >&2; exit 1; }
umask 022
mkdir -p "$dir/etc/ssl/certs" "$dir/tmp"
chmod 755 "$dir"
chmod 1777 "$dir/tmp"
install -m 0555 "$binary" "$dir/headgate"
install -m 0444 "$authorities" "$dir/etc/ssl/certs/ca-certificates.crt"
echo 'headgate:x:65532:65532:headgate:/tmp:/headgate' >"$dir/etc/passwd"
echo 'headgate:x:65532:' >"$dir/etc/group"
chmod 444 "$dir/etc/passwd" "$dir/etc/group"
