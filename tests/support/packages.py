"""Packages made on the spot, so that installing one needs no network."""

from __future__ import annotations

import io
import zipfile


def make_wheel(name: str) -> bytes:
    """Return a Python package with one module, which has `TASTE`, and one program."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "TASTE = 'bitter'\n\n\ndef main():\n    print(TASTE)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": (
            f"[console_scripts]\n{name.replace('_', '-')} = {name}:main\n"
        ),
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return content.getvalue()


REPOSITORY = "/srv/repository"
MAKE_DEBIAN_PACKAGE = f"""\
set -e
mkdir -p {REPOSITORY} /tmp/package/DEBIAN /tmp/package/usr/bin /tmp/package/usr/share/acorn
cd /tmp/package
echo '#!/bin/sh\necho nutty' > usr/bin/acorn
chmod 755 usr/bin/acorn
echo kept > usr/share/acorn/kept
cat > DEBIAN/control <<END
Package: acorn
Version: 1.0
Architecture: all
Maintainer: a test <test@localhost>
Depends: base-files, adduser
Description: a package with a user of its own
END
cat > DEBIAN/postinst <<END
#!/bin/sh
set -e
adduser --system --group --no-create-home --quiet acorn
chown acorn:mail /usr/share/acorn/kept
END
chmod 755 DEBIAN/postinst
dpkg-deb --build --root-owner-group . {REPOSITORY}/acorn.deb
cd {REPOSITORY}
{{
  cat /tmp/package/DEBIAN/control
  echo "Filename: ./acorn.deb"
  echo "Size: $(stat -c %s acorn.deb)"
  echo "SHA256: $(sha256sum acorn.deb | cut -d' ' -f1)"
}} > Packages
rm -rf /tmp/package /etc/apt/sources.list /etc/apt/sources.list.d
echo 'deb [trusted=yes] file:{REPOSITORY} ./' > /etc/apt/sources.list
"""
"""Makes a repository with the package `acorn` inside a sandbox, and its only source."""
