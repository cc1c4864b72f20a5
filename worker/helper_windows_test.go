package worker_test

func helperUnix(string, string) bool { return false }
