module github.com/pleme-io/lifecycle-go

go 1.26
