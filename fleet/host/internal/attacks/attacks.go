// Package attacks has hostile code in the languages of hosted workers. The tests of the floor run it
// in a child, and those of the host run it beside a neighbour.
package attacks

import (
	"fmt"
	"strings"
)

// Attack is hostile code: the body of a handler in one of the languages. Code that begins with
// "load:" is not in a handler.
type Attack struct{ Name, Code string }

// Handler returns code in a language with a body.
func Handler(language, body string) []byte {
	if code, ok := strings.CutPrefix(body, "load:"); ok {
		return []byte(code)
	}
	switch language {
	case "js":
		return []byte("var kept = []; function handle(message) {\n" + body + "\n}")
	case "starlark", "python":
		return []byte("def handle(message):\n    " + strings.ReplaceAll(body, "\n", "\n    ") + "\n")
	}
	return []byte(body)
}

// Ends are attacks that end their child, by a limit or by a crash.
var Ends = map[string][]Attack{
	"js": {
		{"array buffer", `return String(new ArrayBuffer(2**46).byteLength)`},
		{"padStart", `return String("x".padStart(2**46).length)`},
		{"repeat", `return String("x".repeat(2**34).length)`},
		{"deep JSON", `JSON.parse("[".repeat(2e7))`},
		{"deep eval", `eval("(".repeat(2e7))`},
		{"deep source", "load:" + strings.Repeat("(", 20_000_000)},
		{"kept", `kept.push(new Uint8Array(100 << 20).fill(1)); return String(kept.length)`},
		{"look-ahead", `return String(/^(?=(a+)+$)(a+)+$/.test(message.text))`},
		{"big integers", `let x = 3n; for (;;) x = x * x`},
		{"join", `return String(new Array(4e9).join("x").length)`},
		{"loop", `for (;;);`},
		{"loop at load", "load:for (;;);"},
		{"promises", `(function again() { Promise.resolve().then(again) })()`},
		{"doubling", `let s = "x"; for (;;) s += s`},
		{"comparator", `[3, 2, 1].sort(() => { for (;;); })`},
		{"getter of the result", `return { get topic() { for (;;); } }`},
		{"keys of the result", `return new Proxy({}, { ownKeys() { for (;;); } })`},
		{"toString of a line", `console.log({ toString() { for (;;); } })`},
		{"deep pattern", `new RegExp("(".repeat(1e7))`},
		{"fill", `return String(new Array(1e9).fill(0).length)`},
		{"map", `const m = new Map(); for (let i = 0; ; i++) m.set(i, i)`},
		{"iterator", `return String([...{ *[Symbol.iterator]() { for (;;) yield "x" } }].length)`},
		{"length", `return String(Array.prototype.indexOf.call({ length: 2**53 - 1 }, 1))`},
		{"apply", `return String(Math.max.apply(null, { length: 2**31 }))`},
		{"callback of replace", `return "a".replace(/a/, () => { for (;;); })`},
		{"toJSON", `return JSON.stringify({ toJSON() { for (;;); } })`},
		{"toString of a key", `state.get({ toString() { for (;;); } })`},
		{"text of an error", `throw { toString() { for (;;); } }`},
		{"concat", `let a = [1]; for (;;) a = a.concat(a)`},
		{"exponent", `return String(2n ** (2n ** 40n))`},
		{"source that grows", `let s = "0;"; for (;;) { s += s; Function(s)() }`},
		{"recursion through natives", `return [1].map(function f() { return [1].map(f) })`},
		{"deep array", `let a = []; for (let i = 0; i < 1e7; i++) a = [a]; return String(a)`},
		{"Unicode", `let s = "\ufdfa".repeat(1 << 20); for (;;) s += s.normalize("NFKD")`},
		{"the result is in itself", `const a = []; a[0] = a; return a`},
		{"a promise that waits", `return new Promise(() => {})`},
		{"catches everything", `for (;;) try { for (;;) kept.push(new Uint8Array(1 << 20).fill(1)) } catch (e) {}`},
	},
	"starlark": {
		{"deep JSON", `return str(json.decode("[" * 20000000))`},
		{"list", `return str(len([0] * (1 << 29)))`},
		{"range", `return str(len(list(range(1 << 40))))`},
		{"replace", `return str(len(("a" * 10000000).replace("a", "b" * 1000)))`},
		{"join", `return str(len(("x" * 1000000).join(["y"] * 1000000)))`},
		{"str of a deep list", "x = []\nfor i in range(1 << 20):\n    x = [x]\nreturn str(x)"},
		{"big integers", "x = 3\nwhile True:\n    x = x * x"},
		{"loop", "while True:\n    pass"},
		{"loop at load", "load:while True: pass"},
		{"doubling", "s = 'x'\nwhile True:\n    s = s + s"},
		{"shift", "x = 1\nwhile True:\n    x = x << 500"},
		{"hash collisions", "return str(len({k << 32: 0 for k in range(1000000)}))"},
		{"deep source", "load:" + strings.Repeat("(", 5_000_000)},
		{"comprehension", "return str(len([0 for a in range(1 << 20) for b in range(1 << 20)]))"},
		{"split", `return str(len(("," * (1 << 28)).split(",")))`},
		{"format", "s = 'x'\nwhile True:\n    s = '{0}{0}{0}'.format(s)"},
		{"deep value as JSON", "x = []\nfor i in range(1 << 22):\n    x = [x]\nreturn json.encode(x)"},
		{"indented JSON", `return json.indent("[" * 1000000 + "]" * 1000000)`},
		{"sort", "return str(len(sorted(range(1 << 40))))"},
		{"repeat", `return "x" * (1 << 62)`},
		{"recursion", "load:def f(n): return f(n + 1) + 1\ndef handle(m): return str(f(0))"},
	},
	"wasm": {
		{"loop", Module(nil, "\x03\x40\x0c\x00\x0b")},
		{"table", Module([]byte("\x04\x04\x01\x70\x00\x00"), "\xd0\x70\x41\x80\x80\x80\xd0\x00\xfc\x0f\x00\x45\x04\x40\x03\x40\x0c\x00\x0b\x0b\xd0\x70\x41\x80\x80\x80\x30\xfc\x0f\x00\x41\x7f\x46\x04\x40\x00\x0b\x03\x40\x0c\x00\x0b")},
		{"memory", Module(nil, "\x03\x40\x41\x01\x40\x00\x1a\x0c\x00\x0b")},
		{"recursion", Module(nil, "\x10\x00\x10\x00\x0b"[:4])},
		{"unreachable", Module(nil, "\x00")},
		{"start function", build("", "", "\x03\x40\x0c\x00\x0b", "start")},
		{"division", Module(nil, "\x41\x01\x41\x00\x6e\x1a")},
		{"indirect call", Module([]byte("\x04\x04\x01\x70\x00\x01"), "\x41\x00\x11\x00\x00")},
		{"copies", Module(nil, "\x03\x40\x41\x00\x41\x00\x41\x80\x80\x04\xfc\x0a\x00\x00\x0c\x00\x0b")},
		{"nesting", Module(nil, strings.Repeat("\x02\x40", 2_000_000)+strings.Repeat("\x0b", 2_000_000)+"\x03\x40\x0c\x00\x0b")},
		{"data beyond the memory", Module(nil, "") + section(11, "\x01\x00\x41\x80\x80\x80\x80\x04\x0b\x01x")},
		{"cut", Module(nil, "\x03\x40\x0c\x00\x0b")[:40]},
		{"an import that does not exist", calls("env", "system", 1, "", 0)},
		{"a pointer beyond the memory", calls("lifecycle", "state_get", 4, "", 0x7fffffff, 16, 0, 0)},
		{"a length beyond the memory", calls("lifecycle", "publish", 6, "", 0, 1, 0, -1, 0, 0)},
		{"a buffer beyond the memory", calls("lifecycle", "header", 4, ":topic", 0, 6, -16, 1000)},
		{"a bad key", calls("lifecycle", "state_put", 4, ">", 0, 1, 0, 1)},
		{"outputs", calls("lifecycle", "publish", 6, "x", 0, 1, 0, 1, 0, 0)},
		{"lines", calls("wasi_snapshot_preview1", "fd_write", 4, "\x00\x00\x00\x00\x00\xf0\x00\x00", 2, 0, 1, 100)},
		{"random numbers", calls("wasi_snapshot_preview1", "random_get", 2, "", 0, 65536)},
		{"a request", calls("lifecycle", "fetch", 8, "http://127.0.0.1/", 0, 0, 0, 17, 0, 0, 0, 0)},
		{"compile", Module(nil, strings.Repeat("\x03\x40\x0b", 4_000_000)+"\x03\x40\x0c\x00\x0b")},
	},
	"python": {
		{"loop", "while True:\n    pass"},
		{"loop at load", "load:while True: pass"},
		{"ignores SIGTERM", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    pass"},
		{"memory", "x = []\nwhile True:\n    x.append(bytes(1 << 20))"},
		{"mmap", "import mmap\nm = mmap.mmap(-1, 1 << 40)\nreturn 'mapped'"},
		{"segfault", "import ctypes\nctypes.string_at(8)"},
		{"deep recursion", "import sys\nsys.setrecursionlimit(1 << 30)\nf = lambda n: f(n + 1) + 1\nf(0)"},
		{"floods the log", "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n    os.write(2, b'x' * 65536)"},
		{"breaks the protocol", "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"type\":\"ready\"}\\n' * 3)\n    except OSError:\n        pass\nreturn 'written'"},
		{"closes everything", "import os\nos.closerange(0, 64)"},
		{"threads", "import threading, time\nfor i in range(100000):\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"},
		{"leaves", "import os\nos._exit(0)"},
		{"another program", "import os\nos.execv('/usr/bin/env', ['env', 'sleep', '1000'])"},
		{"large file", "import tempfile\nwith tempfile.TemporaryFile() as f:\n    while True:\n        f.write(b'x' * (1 << 20))"},
		{"regular expression", "import re\nreturn str(re.match('(a+)+$', message.text))"},
		{"hash collisions", "return str(len({k * (2 ** 61 - 1): 0 for k in range(1000000)}))"},
		{"iterator", "return str(sum(iter(int, 1)))"},
		{"finalizer", "class A:\n    def __del__(self):\n        while True: pass\nA()"},
		{"trace function", "import sys\ndef t(*a):\n    while True: pass\nsys.settrace(t)\n(lambda: 0)()"},
		{"import hook", "import sys\nclass H:\n    def find_spec(self, *a):\n        while True: pass\nsys.meta_path.insert(0, H())\nimport absent"},
		{"text of an error", "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E()"},
		{"a dictionary without end", "class D(dict):\n    def items(self):\n        while True: yield 'a', 1\nreturn D()"},
		{"a text that hides its length", "class S(str):\n    def __len__(self): return 0\nreturn S('x' * (8 << 20))"},
		{"deep JSON", "import json\njson.loads('[' * 10000000)"},
		{"deep source", "eval('(' * 10000000)"},
		{"deep pattern", "import re\nre.compile('(' * 1000000)"},
		{"deep tuple", "x = ()\nfor i in range(1000000):\n    x = (x,)\nreturn repr(x)"},
		{"entities", "import xml.etree.ElementTree as e\nd = ''.join('<!ENTITY a%d \"%s\">' % (i, ('&a%d;' % (i - 1)) * 20) for i in range(1, 12))\ne.fromstring('<!DOCTYPE x [<!ENTITY a0 \"x\">' + d + ']><x>&a11;</x>')"},
		{"width", "return str(len('%*d' % (1 << 30, 1)))"},
		{"Unicode", "import unicodedata\nreturn str(len(unicodedata.normalize('NFKD', '\ufdfa' * (10 << 20))))"},
		{"compressed", "import zlib\nz = zlib.compressobj()\nd = zlib.decompressobj()\nkept = []\nwhile True:\n    kept.append(d.decompress(z.compress(bytes(8 << 20)) + z.flush(zlib.Z_SYNC_FLUSH)))"},
		{"shared mappings", "import mmap\nkept = []\nwhile True:\n    m = mmap.mmap(-1, 1 << 20)\n    m.write(b'x' * (1 << 20))\n    kept.append(m)"},
		{"pipes", "import os\nkept = []\nwhile True:\n    kept.append(os.pipe())\n    os.write(kept[-1][1], b'x' * 65536)"},
		{"descriptors", "import os\nwhile True:\n    os.dup(0)"},
		{"signals of a timer", "import signal\nsignal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)\nwhile True:\n    pass"},
		{"abort", "import os\nos.abort()"},
		{"exit", "raise SystemExit(0)"},
		{"an exception that none catches", "raise BaseException('x')"},
		{"large power", "return str(len(str(9 ** (9 ** 9))))"},
	},
}

// Module returns a module of WebAssembly with the body of _start, and a section of its tables.
func Module(table []byte, body string) string { return build("", string(table), body, "") }

// calls returns a module that calls an imported function again and again, with data at the beginning
// of its memory.
func calls(from, name string, params int, data string, args ...int32) string {
	text := func(s string) string { return leb(len(s)) + s }
	function := "\x01\x60" + leb(params) + strings.Repeat("\x7f", params) + "\x01\x7f"
	imported := section(1, "\x02\x60\x00\x00"+function[1:]) + section(2, "\x01"+text(from)+text(name)+"\x00\x01")
	body := "\x03\x40"
	for _, arg := range args {
		body += "\x41" + signedLEB(arg)
	}
	return build(imported, "", body+"\x10\x00\x1a\x0c\x00\x0b", "") + section(11, "\x01\x00\x41\x00\x0b"+text(data))
}

// build returns a module: its types and imports, where it has any, its tables, and the body of _start,
// which is also the start function of a module with a start.
func build(imported, table, body, start string) string {
	index := "\x01"
	if imported == "" {
		imported, index = section(1, "\x01\x60\x00\x00"), "\x00"
	}
	if start != "" {
		start = section(8, index)
	}
	function := "\x00" + body + "\x0b"
	return "\x00asm\x01\x00\x00\x00" + imported + section(3, "\x01\x00") + table + section(5, "\x01\x00\x01") +
		section(7, "\x02\x06_start\x00"+index+"\x06memory\x02\x00") + start + section(10, "\x01"+leb(len(function))+function)
}

func section(id byte, content string) string { return string(rune(id)) + leb(len(content)) + content }

// signedLEB returns a number as the operand of i32.const.
func signedLEB(n int32) string {
	var b []byte
	for {
		part := byte(n) & 0x7f
		if n >>= 7; n == 0 && part < 0x40 || n == -1 && part >= 0x40 {
			return string(append(b, part))
		}
		b = append(b, part|0x80)
	}
}

func leb(n int) string {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n)))
}

// Reaches are attempts of Python to reach what is not its own. Each raises, or returns
// what it got.
var Reaches = []Attack{
	{"the host's environment", `return os.environ["HOST_SECRET"]`},
	{"the environment in /proc", `return open("/proc/%d/environ" % os.getppid()).read()`},
	{"the host's memory", `return str(open("/proc/%d/mem" % os.getppid(), "rb"))`},
	{"the host's descriptors", `return str(os.listdir("/proc/%d/fd" % os.getppid()))`},
	{"a file of the host", `return open(@FILE@).read()`},
	{"a folder of the host", `return str(os.listdir(os.path.dirname(@FILE@)))`},
	{"temporary files of others", `return str(os.listdir("/tmp"))`},
	{"passwords", `return open("/etc/passwd").read()`},
	{"a file", `open("/tmp/attack", "w").write("x"); return "written"`},
	{"a file in memory", `open("/dev/shm/attack", "w").write("x"); return "written"`},
	{"a file in the working folder", `open("attack", "w").write("x"); return "written"`},
	{"a temporary file", `import tempfile; tempfile.TemporaryFile().write(b"x"); return "written"`},
	{"a file without a name", `return str(os.open("/tmp", os.O_TMPFILE | os.O_RDWR))`},
	{"a folder", `os.mkdir("/tmp/attack"); return "made"`},
	{"a link", `os.symlink("/etc", "/tmp/attack"); return "made"`},
	{"rights of a file of the host", `os.chmod(@FILE@, 0o777); return "changed"`},
	{"rights of a descriptor", `os.fchmod(0, 0o777); return "changed"`},
	{"the owner of a file of the host", `os.chown(@FILE@, os.getuid(), os.getgid()); return "changed"`},
	{"the times of a file of the host", `os.utime(@FILE@, (0, 0)); return "changed"`},
	{"an attribute of a file of the host", `os.setxattr(@FILE@, "user.attack", b"x"); return "changed"`},
	{"a socket of the host", `s = socket.socket(socket.AF_UNIX); s.connect(@SOCKET@); return "connected"`},
	{"the network", `socket.create_connection(("127.0.0.1", @PORT@)); return "connected"`},
	{"a listener", `s = socket.socket(); s.bind(("127.0.0.1", 0)); return "bound"`},
	{"datagrams", `socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53)); return "sent"`},
	{"a process", `return str(os.fork())`},
	{"a shell", `return str(subprocess.run(["/bin/sh", "-c", "id"], capture_output=True).stdout)`},
	{"many processes", "import multiprocessing\nps = [multiprocessing.Process(target=state.put, args=(str(i), 'x')) for i in range(4)]\n[p.start() for p in ps]\n[p.join() for p in ps]\nreturn 'started'"},
	{"a session", `os.setsid(); return "a session"`},
	{"a signal to the host", `os.kill(os.getppid(), signal.SIGKILL); return "killed"`},
	{"a signal to all", `os.kill(-1, signal.SIGTERM); return "killed"`},
	{"a signal by input", `import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()); return "set"`},
	{"the host's limits", `resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0)); return "set"`},
	{"its own limits", `resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); return "raised"`},
	{"its own niceness", `return str(os.nice(-5))`},
	{"the host's processors", `os.sched_setaffinity(os.getppid(), {0}); return "set"`},
	{"shared memory", `return str(os.memfd_create("x"))`},
	{"a namespace", `return str(check(libc.unshare(0x10000000)))`},
	{"a mount", `return str(check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))`},
	{"root", `os.setuid(0); return "root"`},
	{"a trace", `return str(check(libc.ptrace(16, os.getppid(), 0, 0)))`},
	{"io_uring", `return str(check(libc.syscall(425, 1, 0)))`},
	{"a lease on a file of the interpreter", `import fcntl; fcntl.fcntl(open(os.__file__), fcntl.F_SETLEASE, fcntl.F_WRLCK); return "held"`},
	{"an attribute of a file of the interpreter", `import fcntl; fcntl.ioctl(open(os.__file__), 0x40086602, (0x40).to_bytes(8, "little")); return "set"`},
	{"the disks of the machine", `return str(call(162, 81))`},
	{"the disk of the interpreter", `os.fsync(open(os.__file__).fileno()); return "written"`},
	{"a handler of faults", `return str(call(323, 282, 1))`},
	{"a program in the kernel", `return str(call(321, 280, 0, bytes(128), 128))`},
	{"counters of the processor", `return str(call(298, 241, bytes(128), 0, -1, -1, 0))`},
	{"a key of the kernel", `return str(call(248, 217, b"user", b"attack", b"x", 1, -2))`},
	{"the keys of the session", `return str(call(250, 219, 0, -3, 0))`},
	{"the memory of the host by a call", `return str(check(libc.process_vm_readv(os.getppid(), bytes(16), 1, bytes(16), 1, 0)))`},
	{"the host's memory, advised", `return str(call(440, 440, 3, 0, 0, 21, 0))`},
	{"the host as a descriptor", `return str(call(434, 434, os.getppid(), 0))`},
	{"the host compared", `return str(call(312, 272, os.getppid(), os.getpid(), 0, 0, 0))`},
	{"a signal to a thread of the host", `return str(call(200, 130, os.getppid(), 9))`},
	{"a signal with a value", `return str(check(libc.sigqueue(os.getppid(), 9, None)))`},
	{"a signal by a file", `import fcntl; fcntl.fcntl(0, 15, bytes(8)); return "set"`},
	{"the host's priority", `os.setpriority(os.PRIO_PROCESS, os.getppid(), 19); return "set"`},
	{"the host's disk priority", `return str(call(251, 30, 1, os.getppid(), 3 << 13))`},
	{"the host's scheduler", `os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0)); return "set"`},
	{"a process group", `os.setpgid(0, 0); return "left"`},
	{"a process by vfork", `return str(os.posix_spawn("/bin/true", ["true"], {}))`},
	{"a pseudo-terminal", `import pty; return str(pty.openpty())`},
	{"another root", `os.chroot("/tmp"); return "changed"`},
	{"another group", `os.setgroups([0]); return "changed"`},
	{"another group id", `os.setresgid(65534, 65534, 65534); return "changed"`},
	{"a namespace of the host", `return str(check(libc.setns(3, 0)))`},
	{"a tree of mounts", `return str(call(428, 428, -100, b"/", 1))`},
	{"a file system", `return str(call(430, 430, b"tmpfs", 0))`},
	{"a file by its handle", `return str(check(libc.name_to_handle_at(-100, b"/", bytes(160), bytes(8), 0)))`},
	{"a device", `os.mknod("/tmp/attack", 0o20666, os.makedev(1, 1)); return "made"`},
	{"shared memory of System V", `return str(check(libc.shmget(0, 4096, 0o1600)))`},
	{"semaphores", `return str(check(libc.semget(0, 1, 0o1600)))`},
	{"a queue of System V", `return str(check(libc.msgget(0, 0o1600)))`},
	{"a queue of POSIX", `return str(check(libc.mq_open(b"/attack", os.O_CREAT | os.O_RDWR, 0o600, None)))`},
	{"memory that stays", `return str(check(libc.mlockall(3)))`},
	{"a watch of files", `return str(check(libc.inotify_init1(0)))`},
	{"a watch of the machine's files", `return str(check(libc.fanotify_init(0, 0)))`},
	{"a persona", `return str(check(libc.personality(0x0040000)))`},
	{"the log of the kernel", `return str(check(libc.klogctl(3, bytes(4096), 4096)))`},
	{"the name of the machine", `socket.sethostname("attack"); return "set"`},
	{"the time of the machine", `import time; time.clock_settime(time.CLOCK_REALTIME, 0); return "set"`},
	{"the end of the machine", `return str(check(libc.reboot(0)))`},
	{"a module of the kernel", `return str(call(175, 105, bytes(16), 16, b""))`},
	{"a file of the host, cut", `os.truncate(@FILE@, 0); return "cut"`},
	{"a file of the host, renamed", `os.rename(@FILE@, @FILE@ + "x"); return "renamed"`},
	{"a file of the host, removed", `os.remove(@FILE@); return "removed"`},
	{"a file of the host by a hard link", `os.link(@FILE@, "/tmp/attack"); return "linked"`},
	{"a file of the host through its own root", `return open("/proc/self/root" + @FILE@).read()`},
	{"a file of the host through the host's root", `return open("/proc/%d/root%s" % (os.getppid(), @FILE@)).read()`},
	{"a file of the host by dots", `return open("/usr/lib/.." + "/.." * 20 + @FILE@).read()`},
	{"every process's environment", `import glob; return str([open("/proc/%d/environ" % i).read() for i in range(1, os.getpid())])`},
	{"a setting of the kernel", `open("/proc/sys/kernel/hostname", "w").write("attack"); return "set"`},
	{"the kernel's memory", `return str(open("/proc/kcore", "rb").read(16))`},
	{"its own score of memory", `open("/proc/self/oom_score_adj", "w").write("-1000"); return "set"`},
}

// Reach is code of Python that makes the attempt of Reaches whose index is the text that a
// message's index returns. It answers "denied", or with what it got. file and socket are of the
// host, and so is what listens on port.
func Reach(index, file, socket string, port int) []byte {
	fill := strings.NewReplacer("@FILE@", fmt.Sprintf("%q", file), "@SOCKET@", fmt.Sprintf("%q", socket), "@PORT@", fmt.Sprint(port))
	var b strings.Builder
	b.WriteString(`import ctypes, os, resource, signal, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def check(n):
    if n < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return n
def call(amd64, arm64, *args):
    return check(libc.syscall(amd64 if os.uname().machine == "x86_64" else arm64, *args))
def handle(message):
    try:
        return attempts[int(` + index + `)]()
    except (OSError, KeyError) as err:
        return "denied"
    except ValueError as err:
        return "denied" if "limit" in str(err) else str(err)
attempts = []
`)
	for i, a := range Reaches {
		body := strings.ReplaceAll(fill.Replace(a.Code), "\n", "\n    ")
		fmt.Fprintf(&b, "def attempt%d():\n    %s\nattempts.append(attempt%d)\n", i, body, i)
	}
	return []byte(b.String())
}
