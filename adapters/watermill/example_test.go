package watermillonce_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/adapters/watermill/amqplater"
	"github.com/holdlock/holdlock/adapters/watermill/intx"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

// orders handles each message once: those whose twin is at work come back by way of later, whose messages reach the topic after a while.
func orders(router *message.Router, subscriber message.Subscriber, later message.Publisher, charges *holdlock.Lock) error {
	ones, err := watermillonce.Middleware(charges, &watermillonce.Options{
		Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "orders"},
	})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("charge", "orders", subscriber, func(msg *message.Message) error {
		return pay(msg.Context(), once.KeyFrom(msg.Context()), msg.Payload) // ends when the lease is lost; an idempotency key
	}).AddMiddleware(ones)
	return nil
}

func pay(context.Context, string, []byte) error { return nil }

func Example() {
	var router *message.Router
	var subscriber message.Subscriber
	var later message.Publisher // for example of package amqplater
	var charges *holdlock.Lock  // of a client on Redis, for example
	if err := orders(router, subscriber, later, charges); err != nil {
		log.Fatal(err)
	}
}

// A message that comes twice is handled once. In a test of your own the middleware can be called as here, without a router.
func ExampleMiddleware() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	charges, _ := locks.NewLock("charge", &holdlock.LockOptions{Purpose: "calls the payments API", DoubleRun: holdlock.Costly})
	ones, err := watermillonce.Middleware(charges, &watermillonce.Options{
		Key: func(msg *message.Message) (string, error) { return msg.Metadata.Get("order"), nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	charge := ones(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("charging order", msg.Metadata.Get("order"), "with an idempotency key of", len(once.KeyFrom(msg.Context())), "digits")
		return nil, nil
	})
	for range 2 {
		msg := message.NewMessage(watermill.NewUUID(), []byte("10 euros"))
		msg.Metadata.Set("order", "17")
		_, err := charge(msg)
		fmt.Println("acknowledge:", err == nil)
	}
	// Output:
	// charging order 17 with an idempotency key of 32 digits
	// acknowledge: true
	// acknowledge: true
}

// consume takes orders from RabbitMQ. Each is charged once; what needs a person goes to another queue.
func consume(ctx context.Context, url string, charges *holdlock.Lock, charge message.NoPublishHandlerFunc) error {
	logger := watermill.NewStdLogger(false, false)
	queue := amqp.NewDurableQueueConfig(url)
	queue.Marshaler = amqplater.Marshaler(queue.Marshaler)
	queue.Publish.ConfirmDelivery = true // what is put aside is acknowledged next
	subscriber, err := amqp.NewSubscriber(queue, logger)
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize("orders-aside"); err != nil { // RabbitMQ drops what is sent to a queue that is not there
		return err
	}
	publisher, err := amqp.NewPublisher(queue, logger)
	if err != nil {
		return err
	}
	waiting, err := amqplater.Config(queue, nil)
	if err != nil {
		return err
	}
	later, err := amqp.NewPublisher(waiting, logger)
	if err != nil {
		return err
	}
	aside, err := middleware.PoisonQueueWithFilter(publisher, "orders-aside", watermillonce.PutAside)
	if err != nil {
		return err
	}
	ones, err := watermillonce.Middleware(charges, &watermillonce.Options{
		Once:       once.Options{MaxRuns: 10},
		Redelivery: watermillonce.Redelivery{Later: later, LaterTopic: "orders"},
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("charge", "orders", subscriber, charge).AddMiddleware(aside, ones)
	return router.Run(ctx)
}

// On RabbitMQ.
func Example_rabbitMQ() {
	var charges *holdlock.Lock // of a client on Redis, for example
	err := consume(context.Background(), "amqp://guest:guest@localhost/", charges, func(*message.Message) error { return nil })
	log.Println(err)
}

// The record of the job is in the transaction of its effect.
func Example_inTransaction() {
	var pool *pgxpool.Pool
	var payouts *holdlock.Lock // of a client of pghold.OpenTransactions
	ones, err := intx.Middleware(payouts, pool.Begin, nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := ones(func(msg *message.Message) ([]*message.Message, error) {
		_, err := intx.Tx[pgx.Tx](msg.Context()).Exec(msg.Context(), "INSERT INTO payouts (day) VALUES ($1)", string(msg.Payload))
		return nil, err
	})
	_ = handler // AddMiddleware(ones) does that
}
