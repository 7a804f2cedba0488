"""Imported first by the server that workers are forked from: it and they leave Ctrl-C to the client."""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
