package watermillonce_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock/adapters/watermill/amqplater"
)

// publish sends messages to come back, from several places at once, and cuts the connection again and again. All of them have to go on:
// a handler that waits for ever in Later keeps its message, and its consumer.
func (w *worker) publish(ctx context.Context) error {
	var conn atomic.Pointer[net.Conn]
	queue := w.queue()
	dial := queue.Connection.AmqpConfig.Dial
	queue.Connection.AmqpConfig.Dial = func(network, addr string) (net.Conn, error) {
		c, err := dial(network, addr)
		if err == nil {
			conn.Store(&c)
		}
		return c, err
	}
	config, err := amqplater.Config(queue, nil)
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(config, w.logger())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var sent [8]atomic.Int64
	var all sync.WaitGroup
	for i := range sent {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if publisher.Publish(w.Topic, message.NewMessage(fmt.Sprint(i, "/", n), nil)) == nil {
					sent[i].Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	defer all.Wait()
	defer publisher.Close() // who waits for a channel gets an error
	defer stop()
	const most = 10
	for cuts := range most + 1 {
		for i := range sent {
			before := sent[i].Load()
			for give := time.Now().Add(time.Minute); sent[i].Load() <= before; time.Sleep(time.Millisecond) {
				if time.Now().After(give) {
					return fmt.Errorf("publisher %d is stuck after %d cuts", i, cuts)
				}
			}
		}
		if cuts < most { // the framework's Close hangs if the connection is cut just before it
			_ = (*conn.Load()).Close()
		}
	}
	return nil
}
