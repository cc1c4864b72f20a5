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
		{"recursion", "load:def f(n): return f(n + 1) + 1\ndef handle(m): return str(f(0))"},
	},
	"wasm": {
		{"loop", Module(nil, "\x03\x40\x0c\x00\x0b")},
		{"table", Module([]byte("\x04\x04\x01\x70\x00\x00"), "\xd0\x70\x41\x80\x80\x80\xd0\x00\xfc\x0f\x00\x45\x04\x40\x03\x40\x0c\x00\x0b\x0b\xd0\x70\x41\x80\x80\x80\x30\xfc\x0f\x00\x41\x7f\x46\x04\x40\x00\x0b\x03\x40\x0c\x00\x0b")},
		{"memory", Module(nil, "\x03\x40\x41\x01\x40\x00\x1a\x0c\x00\x0b")},
		{"recursion", Module(nil, "\x10\x00\x10\x00\x0b"[:4])},
		{"unreachable", Module(nil, "\x00")},
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
		{"large power", "return str(len(str(9 ** (9 ** 9))))"},
	},
}

// Module returns a module of WebAssembly with the body of _start, and a section of its tables.
func Module(table []byte, body string) string {
	section := func(id byte, content string) string { return string(id) + leb(len(content)) + content }
	function := "\x00" + body + "\x0b"
	return "\x00asm\x01\x00\x00\x00" + section(1, "\x01\x60\x00\x00") + section(3, "\x01\x00") + string(table) + section(5, "\x01\x00\x01") +
		section(7, "\x02\x06_start\x00\x00\x06memory\x02\x00") + section(10, "\x01"+leb(len(function))+function)
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
