"""A server on the socket that it inherits, by the standard library alone. At SIGTERM it ends its requests."""
import http.server
import os
import signal
import socket
import threading

assert os.environ["LISTEN_PID"] == str(os.getpid())


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for the requests


server = Server(("", 0), Handler, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=3)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever(poll_interval=0.05)
server.server_close()
