#!/bin/sh
# A script that starts its server as a child: the shell gets the signal, and ends.
python3 -m http.server --protocol HTTP/1.1 --bind 127.0.0.1 "$1"
