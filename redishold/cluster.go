package redishold

import (
	"context"
	"sync"

	"github.com/holdlock/holdlock/driver"
)

// clusterCallers is how many renewals are under way at once on a Cluster.
const clusterCallers = 16

// renewEach renews terms one by one, some at a time: on a Cluster each may be on another node, and redirections are
// followed for single commands.
func (d *Driver) renewEach(ctx context.Context, reqs []*driver.RenewRequest, which []int, results []driver.RenewResult) {
	next := make(chan int, len(which))
	for _, i := range which {
		next <- i
	}
	close(next)
	var callers sync.WaitGroup
	for range min(clusterCallers, len(which)) {
		callers.Go(func() {
			for i := range next {
				d.renewTogether(ctx, reqs, []int{i}, results)
			}
		})
	}
	callers.Wait()
}
