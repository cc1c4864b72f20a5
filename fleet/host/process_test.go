package host_test

func hostProcess() int { return 0 }
