package call

// Stacks cuts a dump into the stacks of its goroutines.
var Stacks = stacks
