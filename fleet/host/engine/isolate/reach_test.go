package isolate_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
)

// reaches are attempts of Python to reach what is not its own. Each raises, or returns
// what it got.
var reaches = []attack{
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

// reach is code that makes the attempt that a message names.
func reach(fill *strings.Replacer) []byte {
	var b strings.Builder
	b.WriteString(`import ctypes, os, resource, signal, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def check(n):
    if n < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return n
def handle(message):
    try:
        return attempts[int(message.id)]()
    except (OSError, KeyError) as err:
        return "denied"
    except ValueError as err:
        return "denied" if "limit" in str(err) else str(err)
attempts = []
`)
	for i, a := range reaches {
		fmt.Fprintf(&b, "def attempt%d():\n    %s\nattempts.append(attempt%d)\n", i, strings.ReplaceAll(fill.Replace(a.code), "\n", "\n    "), i)
	}
	return []byte(b.String())
}

// Python reaches nothing of the host, of other workers, or of the machine.
func TestPythonReachesNothing(t *testing.T) {
	t.Setenv("HOST_SECRET", "s3cr3t")
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "private"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, []byte("s3cr3t"), 0o600); err != nil {
		t.Fatal(err)
	}
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	fill := strings.NewReplacer("@FILE@", fmt.Sprintf("%q", file), "@SOCKET@", fmt.Sprintf("%q", socket), "@PORT@", fmt.Sprint(tcp.Addr().(*net.TCPAddr).Port))
	limits := tight
	limits.Time = time.Minute
	p, err := w.engines["python"].Load(t.Context(), reach(fill), engine.Config{Worker: "bad", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range reaches {
		t.Run(a.name, func(t *testing.T) {
			out, err := p.Handle(t.Context(), message(fmt.Sprint(i)), enginetest.NewState())
			if err != nil || len(out) != 1 || string(out[0].Data) != "denied" {
				t.Errorf("it got %.200q, %v", out, err)
			}
		})
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// plainState is a state for one goroutine: the race detector finds a second one.
type plainState map[string]string

func (s plainState) Get(_ context.Context, key string) ([]byte, bool, error) {
	v, ok := s[key]
	return []byte(v), ok, nil
}
func (s plainState) Put(_ context.Context, key string, v []byte) error {
	s[key] = string(v)
	return nil
}
func (s plainState) Delete(_ context.Context, key string) error { delete(s, key); return nil }

// Threads of a handler use the state one after the other, and never that of a message
// that was answered.
func TestStateIsOneMessages(t *testing.T) {
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	p, err := w.engines["python"].Load(t.Context(), []byte(`
import threading, time
late = threading.Event()
result = []
def straggle():
    late.wait()
    try:
        state.put("late", "x")
        result.append("written")
    except Exception as err:
        result.append(str(err))
def handle(message):
    if message.id == "1":
        threading.Thread(target=straggle, daemon=True).start()
        threads = [threading.Thread(target=lambda i=i: [state.put("%d" % i, str(n)) for n in range(50)]) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        return
    late.set()
    while not result:
        time.sleep(0.01)
    return result[0]
`), engine.Config{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	state, next := plainState{}, plainState{}
	_, err = p.Handle(t.Context(), message("1"), state)
	if err != nil || len(state) != 4 || state["0"] != "49" || state["3"] != "49" {
		t.Errorf("state is %v, %v", state, err)
	}
	if _, err := p.Handle(t.Context(), message("2"), next); err != nil || state["late"] != "" {
		t.Errorf("state of the first message: %v, %v", state, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A child has no folder, so it can leave nothing behind. It starts also where the folder of
// temporary files is gone.
func TestChildrenLeaveNoFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	for range 2 {
		p, err := w.engines["python"].Load(t.Context(), []byte("def handle(message): pass"), engine.Config{Worker: "w"})
		if err != nil {
			t.Fatal(err)
		}
		if found, err := os.ReadDir(dir); len(found) > 0 {
			t.Errorf("in the folder of temporary files are %v, %v", found, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil { // as a cleaner does
			t.Fatal(err)
		}
	}
}
