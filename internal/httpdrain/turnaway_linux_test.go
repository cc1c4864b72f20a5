package httpdrain

import "testing"

func TestResetsInTheKernelsTable(t *testing.T) {
	for text, want := range map[string]uint64{
		"Ip: Forwarding\nIp: 1\nTcp: RtoMin OutRsts InErrs\nTcp: 200 77 3\nUdp: A\nUdp: 1\n": 77,
		"Tcp: RtoMin OutRsts\nTcp: 200\n": 0,
		"Tcp: OutRsts\nTcp: many\n":       0,
		"Tcp: OutRsts\n":                  0,
		"":                                0,
	} {
		if got := resetsIn([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
