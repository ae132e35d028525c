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
