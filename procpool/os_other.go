//go:build !unix

package procpool

import (
	"errors"
	"io/fs"
	"os"
)

const supported = false // there are no process groups

func owner(fs.FileInfo) int { return os.Getuid() }

func groupOf(int) int { return -1 }

func socketPair() (ours, theirs *os.File, err error) { return nil, nil, errors.ErrUnsupported }
