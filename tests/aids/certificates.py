"""Certificates of an authority that a test makes for itself, and the keys that belong to them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

OPENSSL = shutil.which("openssl")


class Authority:
    """Signs certificates into a folder; each is made once."""

    def __init__(self, folder: Path, days: int = 2) -> None:
        """All certificates are in force for so many days, the authority's own as well."""
        self._folder = folder
        self._days = str(days)
        # Python 3.13 asks for RFC 5280 to the letter: what an authority's key is for, and whose key signed.
        own = ("-subj", "/CN=ca", "-days", self._days, "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._openssl("req", "-x509", *self._KEY, "-keyout", "ca.key", "-out", "ca.crt", *own)
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")

    _KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def __call__(self, name: str) -> tuple[Path, Path]:
        """The certificate of this common name and its key; "ca" is the authority's own."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        if not certificate.exists():
            request = f"{name}.csr"
            self._openssl("req", *self._KEY, "-keyout", key.name, "-out", request, "-subj", f"/CN={name}")
            sign = (
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                self._days,
                "-extfile",
                "names",
            )
            self._openssl("x509", "-req", "-in", request, "-out", certificate.name, *sign)
        return certificate, key

    def _openssl(self, *arguments: str) -> None:
        command = [str(OPENSSL), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=60)
