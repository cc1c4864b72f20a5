"""Returns what it gets: a length of four bytes, and that many bytes."""

import socket
import struct
import sys

connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
head, data = bytearray(4), bytearray()


def fill(view):
    while len(view) > 0:
        n = connection.recv_into(view)
        if n == 0:
            sys.exit()
        view = view[n:]


while True:
    fill(memoryview(head))
    (n,) = struct.unpack(">I", head)
    if len(data) != n:
        data = bytearray(n)
    fill(memoryview(data))
    if n < 65536:
        connection.sendall(head + data)
    else:
        connection.sendall(head)
        connection.sendall(data)
