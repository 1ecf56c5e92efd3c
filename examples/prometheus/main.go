// Command prometheus shows an Observer that keeps Prometheus metrics: it runs a job under a lock every few seconds and
// serves http://localhost:2112/metrics.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "localhost:2112"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	reg := prometheus.NewRegistry()
	observer, err := NewObserver(reg)
	if err != nil {
		return err
	}
	locks, err := memhold.Open(&memhold.Options{Client: holdlock.ClientOptions{Observer: observer}})
	if err != nil {
		return err
	}
	job, err := locks.NewLock("tick", &holdlock.LockOptions{Purpose: "shows metrics", DoubleRun: holdlock.Harmless})
	if err != nil {
		return err
	}

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	server := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()

	for ctx.Err() == nil {
		err := job.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		select {
		case <-time.After(4 * time.Second):
		case <-ctx.Done():
		case err := <-served:
			return err
		}
	}
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(locks.Shutdown(grace), server.Shutdown(grace))
}
