"""A small server for a sandbox's port 3000, as a program: plain answers, streams, WebSockets."""

from __future__ import annotations

SERVER = """
import base64, hashlib, http.server, json, struct, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo_messages()
        if self.path.startswith("/hang-up"):
            self.close_connection = True
            return
        if self.path.startswith("/break"):
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        if self.path.startswith("/drip"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"5\\r\\ndrip\\n\\r\\n")
                self.wfile.flush()
                time.sleep(0.05)
        body = json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def do_POST(self):
        total = 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                total += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            total = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(str(total).encode())
        self.close_connection = True

    def echo_messages(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        if "Sec-WebSocket-Protocol" in self.headers:
            self.send_header("Sec-WebSocket-Protocol", "chat")
        self.end_headers()
        while True:
            first, second = self.rfile.read(2)
            length = second & 127
            if length == 126:
                length = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            if data == b"please close":
                first, data = 0x88, struct.pack(">H", 4321) + b"bye"
            head = bytes([first, len(data)]) if len(data) < 126 else (
                bytes([first, 126]) + struct.pack(">H", len(data)))
            self.wfile.write(head + data)
            self.wfile.flush()
            if first & 15 == 8:
                self.close_connection = True
                return

http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""
