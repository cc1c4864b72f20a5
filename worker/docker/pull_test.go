package docker_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/pleme-io/lifecycle-go/worker/docker"
)

// registry serves one image of one layer to a pull (OCI
// distribution specification, "Pull"), and counts the requests for its manifest: one or two
// per pull.
func registry(t *testing.T) (address string, asked *atomic.Int64) {
	program, err := os.ReadFile(inmatePath(t))
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "inmate", Mode: 0o755, Size: int64(len(program))}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(program)
	_ = w.Close()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(layer.Bytes())
	_ = z.Close()

	blobs := make(map[string][]byte)
	put := func(kind string, body []byte) map[string]any {
		d := digest(body)
		blobs[d] = body
		return map[string]any{"mediaType": kind, "size": len(body), "digest": d}
	}
	config := put("application/vnd.docker.container.image.v1+json", encode(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": []string{"/inmate"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	}))
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	manifest := encode(t, map[string]any{
		"schemaVersion": 2, "mediaType": kind, "config": config,
		"layers": []any{put("application/vnd.docker.image.rootfs.diff.tar.gzip", packed.Bytes())},
	})
	asked = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch path := req.URL.Path; {
		case path == "/v2/":
		case strings.HasPrefix(path, "/v2/team/inmate/manifests/"):
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Docker-Content-Digest", digest(manifest))
			w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
			asked.Add(1)
			if req.Method == http.MethodGet {
				_, _ = w.Write(manifest)
			}
		case blobs[path[strings.LastIndex(path, "/")+1:]] != nil:
			_, _ = w.Write(blobs[path[strings.LastIndex(path, "/")+1:]])
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), asked
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func encode(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// An engine accepts a registry on the loopback without TLS.
func TestPullIsAChoice(t *testing.T) {
	r := onShared(t)
	address, asked := registry(t)
	spec := worker.ContainerSpec{Image: address + "/team/inmate:1", Command: []string{"exit", "0"}}
	run := func(opts ...docker.Option) *worker.Container {
		w := worker.NewContainer("c", r.of(opts...), spec, worker.WithCreateTimeout(soon))
		start(t, w)
		ended(t, w)
		gone(t, w)
		return w
	}
	if w := run(); w.Status() != worker.StatusFailed || asked.Load() != 0 {
		t.Errorf("without the option it is %s, %v, and the registry was asked %d times", w.Status(), w.Err(), asked.Load())
	}
	if w := run(docker.WithPull(client.ImagePullOptions{})); w.Status() != worker.StatusFinished || asked.Load() == 0 {
		t.Errorf("it is %s, %v, and the registry was asked %d times", w.Status(), w.Err(), asked.Load())
	}
	before := asked.Load()
	if w := run(docker.WithPull(client.ImagePullOptions{})); w.Status() != worker.StatusFinished || asked.Load() != before {
		t.Errorf("the engine has the image, but asked the registry again: %s, %v", w.Status(), w.Err())
	}
	spec.Image = address + "/team/nothing:1"
	if w := run(docker.WithPull(client.ImagePullOptions{})); w.Status() != worker.StatusFailed || !strings.Contains(w.Err().Error(), "pull image "+spec.Image) {
		t.Errorf("it is %s, %v", w.Status(), w.Err())
	}
}
