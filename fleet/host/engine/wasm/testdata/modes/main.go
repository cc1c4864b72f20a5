// Command modes is the guest of the conformance suite, built for wasip1.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

//go:wasmimport lifecycle header
func hostHeader(name unsafe.Pointer, nameLen uint32, buf unsafe.Pointer, bufLen uint32) int32

//go:wasmimport lifecycle state_get
func hostGet(key unsafe.Pointer, keyLen uint32, buf unsafe.Pointer, bufLen uint32) int32

//go:wasmimport lifecycle state_put
func hostPut(key unsafe.Pointer, keyLen uint32, v unsafe.Pointer, vLen uint32) int32

//go:wasmimport lifecycle state_delete
func hostDelete(key unsafe.Pointer, keyLen uint32) int32

//go:wasmimport lifecycle publish
func hostPublish(topic unsafe.Pointer, topicLen uint32, data unsafe.Pointer, dataLen uint32, headers unsafe.Pointer, headersLen uint32) int32

//go:wasmimport lifecycle fetch
func hostFetch(
	method unsafe.Pointer, methodLen uint32,
	url unsafe.Pointer, urlLen uint32,
	headers unsafe.Pointer, headersLen uint32,
	body unsafe.Pointer, bodyLen uint32,
) int32

//go:wasmimport lifecycle fetch_body
func hostBody(buf unsafe.Pointer, bufLen uint32) int32

//go:wasmimport lifecycle fetch_header
func hostAnswer(name unsafe.Pointer, nameLen uint32, buf unsafe.Pointer, bufLen uint32) int32

func fetch(method, url, headers, body string) (status int32, answer, text string) {
	m, mn := p(method)
	u, un := p(url)
	h, hn := p(headers)
	b, bn := p(body)
	status = hostFetch(m, mn, u, un, h, hn, b, bn)
	buf := make([]byte, 1024)
	text = string(buf[:hostBody(unsafe.Pointer(&buf[0]), uint32(len(buf)))])
	n, nn := p("Answer")
	answer = string(buf[:max(0, hostAnswer(n, nn, unsafe.Pointer(&buf[0]), uint32(len(buf))))])
	return status, answer, text
}

//go:wasmimport lifecycle timer_set
func hostSet(name unsafe.Pointer, nameLen uint32, when unsafe.Pointer, whenLen uint32, data unsafe.Pointer, dataLen uint32) int32

//go:wasmimport lifecycle timer_cancel
func hostCancel(name unsafe.Pointer, nameLen uint32) int32

//go:wasmimport lifecycle timer_list
func hostList(buf unsafe.Pointer, bufLen uint32) int32

func setTimer(name, when, data string) {
	n, nn := p(name)
	w, wn := p(when)
	d, dn := p(data)
	hostSet(n, nn, w, wn, d, dn)
}

func p(s string) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.StringData(s)), uint32(len(s))
}

func header(name string) string {
	buf := make([]byte, 64)
	at, n := p(name)
	return string(buf[:max(0, hostHeader(at, n, unsafe.Pointer(&buf[0]), uint32(len(buf))))])
}

func get(key string) string {
	buf := make([]byte, 64)
	at, n := p(key)
	return string(buf[:max(0, hostGet(at, n, unsafe.Pointer(&buf[0]), uint32(len(buf))))])
}

func put(key, v string) {
	at, n := p(key)
	vAt, vn := p(v)
	hostPut(at, n, vAt, vn)
}

func publish(topic, data, headers string) {
	t, tn := p(topic)
	d, dn := p(data)
	h, hn := p(headers)
	hostPublish(t, tn, d, dn, h, hn)
}

var held [][]byte

func main() {
	topic := os.Getenv("LIFECYCLE_TOPIC")
	_, mode, _ := strings.Cut(topic, ".")
	switch mode {
	case "env":
		fmt.Print(os.Getenv("GREETING"))
	case "echo":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			panic(err)
		}
	case "two":
		publish("out.a", "1", "K: v\n")
		publish("out.b", "2", "")
	case "fields":
		fmt.Print(strings.Join([]string{os.Getenv("LIFECYCLE_WORKER"), os.Getenv("LIFECYCLE_MESSAGE_ID"), topic,
			os.Getenv("LIFECYCLE_ATTEMPT"), os.Getenv("LIFECYCLE_FENCE"), header("X"), header(":trace")}, "|"))
	case "state":
		n, _ := strconv.Atoi(get("n"))
		v := strconv.Itoa(n + 1)
		put("n", v)
		at, l := p("gone")
		hostDelete(at, l)
		fmt.Print(v)
	case "timer":
		setTimer("a", "@2000000000", "at")
		setTimer("b", "60000", "")
		at, l := p("gone")
		hostCancel(at, l)
		buf := make([]byte, 256)
		var said []string
		for line := range strings.Lines(string(buf[:hostList(unsafe.Pointer(&buf[0]), uint32(len(buf)))])) {
			due, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			said = append(said, name+"@"+due)
		}
		fmt.Print(strings.Join(said, " "))
	case "fired":
		if name := os.Getenv("LIFECYCLE_TIMER"); name == "" && header(":timer") == "" {
			fmt.Print("none")
		} else {
			data, _ := io.ReadAll(os.Stdin)
			fmt.Print(strings.Join([]string{header(":timer"), os.Getenv("LIFECYCLE_TIMER_DUE"), os.Getenv("LIFECYCLE_ATTEMPT"), string(data)}, "|"))
			if header(":timer-due") != os.Getenv("LIFECYCLE_TIMER_DUE") || name != header(":timer") {
				panic("the header and the environment differ")
			}
		}
	case "badtimer":
		setTimer("", "1", "")
	case "retry":
		fmt.Fprint(os.Stderr, "try later")
		os.Exit(1)
	case "reject":
		fmt.Fprint(os.Stderr, "never")
		os.Exit(65)
	case "loop":
		for {
		}
	case "alloc":
		for {
			held = append(held, bytes.Repeat([]byte("x"), 1<<20))
		}
	case "panic":
		panic(errors.New("out"))
	case "wrongtype":
		publish("out.a", "x", "no colon")
	case "print":
		for range 8192 {
			fmt.Fprintln(os.Stderr, strings.Repeat("x", 1024))
		}
	case "flood":
		for range 8192 {
			fmt.Print(strings.Repeat("x", 1024))
		}
	case "badkey":
		put("a b", "x")
	case "badtopic":
		publish("out.*", "x", "")
	case "fetch":
		data, _ := io.ReadAll(os.Stdin)
		status, answer, text := fetch("POST", "https://example.com/data", "K: v\n", string(data))
		fmt.Printf("%d %s %s", status, answer, text)
	case "badfetch":
		_, _, why := fetch("GET", "https://example.com/forbidden", "", "")
		fmt.Fprint(os.Stderr, why)
		os.Exit(1)
	case "pointer":
		hostPut(unsafe.Pointer(uintptr(1<<31)), 1<<30, nil, 0)
	case "cat":
		fmt.Print(os.ReadFile("/etc/passwd"))
	}
}
