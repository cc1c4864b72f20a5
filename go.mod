module github.com/pleme-io/lifecycle-go

go 1.26.0

require (
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.24.0
)

require github.com/stretchr/testify v1.12.1 // indirect
