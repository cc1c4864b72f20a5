package cgroup_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pleme-io/lifecycle-go/internal/cgroup"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("CGROUP_TEST_CHILD") != "" {
		var b [1]byte
		_, _ = os.Stdin.Read(b[:]) // until the parent has put this process into the group
		limit, file, err := cgroup.MemoryLimit(os.DirFS("/"))
		if err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString(strconv.FormatInt(limit, 10) + " " + file)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const (
	v2mount     = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	v1mount     = "40 35 0:30 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
	noiseMounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n31 25 0:27 / /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n\nbroken\n"
)

func TestMemoryLimit(t *testing.T) {
	type files map[string]string
	for name, c := range map[string]struct {
		files files
		limit int64
		file  string
		err   string
	}{
		"nothing": {files: files{}},
		"v2 container": {files{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": noiseMounts + v2mount,
			"sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20, "/sys/fs/cgroup/memory.max", ""},
		"v2 max": {files: files{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/memory.max": "max\n",
		}},
		"v2 the pod is tighter than the container": {files{
			"proc/self/cgroup": "0::/pods/pod1/app\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/pods/pod1/app/memory.max": "max", "sys/fs/cgroup/pods/pod1/memory.max": "1000", "sys/fs/cgroup/pods/memory.max": "2000",
		}, 1000, "/sys/fs/cgroup/pods/pod1/memory.max", ""},
		"v1 without a namespace": {files{
			"proc/self/cgroup":                            "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n",
			"proc/self/mountinfo":                         "41 35 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":  "268435456",
			"sys/fs/cgroup/memory/docker/abc/memory.oops": "1",
		}, 256 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes", ""},
		"v1 unlimited": {files: files{
			"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": v1mount,
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
		}},
		"hybrid": {files{
			"proc/self/cgroup":                             "4:memory:/a/b\n0::/a\n",
			"proc/self/mountinfo":                          v1mount + "42 35 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "77",
			"sys/fs/cgroup/unified/a/cgroup.procs":         "",
		}, 77, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", ""},
		"the group is outside of what is mounted": {files{
			"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/memory.max": "9",
		}, 9, "/sys/fs/cgroup/memory.max", ""},
		"a name that only begins alike": {files{
			"proc/self/cgroup": "0::/pod12\n", "proc/self/mountinfo": "30 25 0:26 /pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory.max": "8", "sys/fs/cgroup/2/memory.max": "1",
		}, 8, "/sys/fs/cgroup/memory.max", ""},
		"a mount point with a space": {files{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "30 25 0:26 / /my\\040cgroup rw - cgroup2 cgroup2 rw\n",
			"my cgroup/memory.max": "7",
		}, 7, "/my cgroup/memory.max", ""},
		"nonsense does not hide the rest": {files{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/a/memory.max": "lots", "sys/fs/cgroup/memory.max": "6",
		}, 6, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/a/memory.max"},
		"no mountinfo": {files: files{"proc/self/cgroup": "0::/\n"}, err: "mountinfo"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			for f, s := range c.files {
				fsys[f] = &fstest.MapFile{Data: []byte(s)}
			}
			limit, file, err := cgroup.MemoryLimit(fsys)
			if limit != c.limit || file != c.file {
				t.Errorf("limit %d from %q, want %d from %q", limit, file, c.limit, c.file)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// A process in a real group with a real limit finds it.
func TestMemoryLimitOfARealGroup(t *testing.T) {
	var dir string
	for _, c := range []struct{ parent, file string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"},
	} {
		d := filepath.Join(c.parent, "lifecycle-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(d, 0o755) != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(d, c.file), []byte("134217728"), 0o644); err != nil {
			_ = os.Remove(d)
			continue
		}
		dir = d
		break
	}
	if dir == "" {
		t.Skip("no control group with a memory controller can be made here")
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "CGROUP_TEST_CHILD=1")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	child.Stdout = &out
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	moved := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(child.Process.Pid)), 0o644)
	_ = in.Close()
	if err := errors.Join(child.Wait(), moved); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if !strings.HasPrefix(out.String(), "134217728 "+dir+"/memory.") {
		t.Errorf("the child found %q, want 134217728 in %s", out.String(), dir)
	}
}

func FuzzMemoryLimit(f *testing.F) {
	f.Add("0::/a\n", v2mount, "max")
	f.Add("4:memory:/a\n", v1mount, "12")
	f.Add("4:memory:/..\n0::\n::", noiseMounts, "-1")
	f.Fuzz(func(t *testing.T, groups, mounts, limit string) {
		fsys := anywhere{fstest.MapFS{
			"proc/self/cgroup":    {Data: []byte(groups)},
			"proc/self/mountinfo": {Data: []byte(mounts)},
			"limit":               {Data: []byte(limit)},
		}}
		n, file, _ := cgroup.MemoryLimit(fsys)
		if n < 0 || n >= 1<<62 || (n > 0) != (file != "") {
			t.Errorf("limit %d from %q", n, file)
		}
	})
}

// anywhere is a file system in which every group has the same limit.
type anywhere struct{ fstest.MapFS }

func (a anywhere) Open(name string) (fs.File, error) {
	if strings.Contains(name, "memory.") {
		name = "limit"
	}
	return a.MapFS.Open(name)
}

func (a anywhere) ReadFile(name string) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if strings.Contains(name, "memory.") {
		name = "limit"
	}
	return a.MapFS.ReadFile(name)
}
