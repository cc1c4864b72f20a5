//go:build !linux || !amd64

package main

import (
	"errors"
	"time"
)

func setClock(time.Duration) error { return errors.ErrUnsupported }
