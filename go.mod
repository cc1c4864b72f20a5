module github.com/pleme-io/lifecycle-go

go 1.26

require go.uber.org/goleak v1.3.0
