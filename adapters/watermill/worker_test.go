package watermillonce_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/adapters/watermill/amqplater"
	"github.com/holdlock/holdlock/adapters/watermill/intx"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
)

// workerEnv makes a process of this test a worker.
const workerEnv = "HOLDLOCK_TEST_WATERMILL_WORKER"

// settings are those of one worker.
type settings struct {
	Dir      string // of the diary
	Topic    string
	Mode     string // "once", "in transaction", "publish", and the naive ones: "skip", "spin", "nothing"
	Broker   string // URL
	Redis    string // host:port
	Postgres string // URL
	Handlers int
	Job      time.Duration // how long a job takes before its effect
	Gate     string        // a file; a job does not end before it is there
	After    time.Duration // and after it
	CutAt    time.Duration // how long after its begin a job cuts its connection
	Cut      int           // of so many jobs one cuts the connection that its message came by; 0: none
	Retries  int           // of the queue: how often it may deliver again what was not acknowledged; 0: no limit
	TTL      time.Duration
	// Heartbeat is how soon the broker notices that a worker stands still, within three of them, and gives what it has to others. The
	// least of this and a minute, which is the broker's own.
	Heartbeat time.Duration
}

// amqpConfig has time limits for a machine that may be busy.
func amqpConfig(heartbeat time.Duration) *amqp091.Config {
	return &amqp091.Config{Heartbeat: cmp.Or(heartbeat, 5*time.Minute), Locale: "en_US", Dial: amqp091.DefaultDial(2 * time.Minute)}
}

// queue are the settings of a subscriber.
func (s *settings) queue() amqp.Config {
	c := amqp.NewDurableQueueConfig(s.Broker)
	c.Marshaler = amqplater.Marshaler(c.Marshaler)
	c.Connection.AmqpConfig = amqpConfig(s.Heartbeat)
	c.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: 20 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: time.Second}
	if s.Retries > 0 {
		c.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(s.Retries)}
	}
	return c
}

// A worker is one process that takes messages of the topic.
type worker struct {
	settings
	diary diary
	pool  *pgxpool.Pool
	locks *holdlock.Client
	lock  *holdlock.Lock
}

func work(text string) int {
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.settings); err != nil {
		return 2
	}
	if err := w.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

func (w *worker) run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if w.diary, err = openDiary(w.Dir); err != nil {
		return err
	}
	if w.Mode == "publish" {
		return w.publish(ctx)
	}
	observed := holdlock.ClientOptions{Observer: w.diary, CallTimeout: 20 * time.Second}
	if w.Mode == "in transaction" {
		if w.pool, err = pgxpool.New(ctx, w.Postgres); err != nil {
			return err
		}
		defer w.pool.Close()
		w.locks, err = pghold.OpenTransactions(&pghold.TxOptions{Client: observed})
	} else {
		rdb := redis.NewClient(&redis.Options{Addr: w.Redis})
		defer rdb.Close()
		w.locks, err = redishold.Open(rdb, &redishold.Options{Client: observed})
	}
	if err != nil {
		return err
	}
	if w.lock, err = w.locks.NewLock(w.Topic, &holdlock.LockOptions{TTL: w.TTL, DoubleRun: holdlock.Costly}); err != nil {
		return err
	}
	ones, err := w.middleware()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, w.logger())
	if err != nil {
		return err
	}
	for i := range w.Handlers { // a subscription takes one message at a time
		if err := w.subscribe(router, i, ones); err != nil {
			return err
		}
	}
	go func() {
		select {
		case <-router.Running():
			w.diary.note(ready, "-", 0, 0)
		case <-ctx.Done():
		}
	}()
	if err := router.Run(ctx); err != nil {
		return err
	}
	return w.locks.Shutdown(context.Background())
}

// A seat is a subscription with a connection of its own, which its jobs can cut.
type seat struct{ conn atomic.Pointer[net.Conn] }

func (w *worker) subscribe(router *message.Router, i int, ones message.HandlerMiddleware) error {
	var s seat
	config := w.queue()
	dial := config.Connection.AmqpConfig.Dial
	config.Connection.AmqpConfig.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := dial(network, addr)
		if err == nil {
			s.conn.Store(&conn)
		}
		return conn, err
	}
	sub, err := amqp.NewSubscriber(config, w.logger())
	if err != nil {
		return err
	}
	h := router.AddConsumerHandler(fmt.Sprint("seat ", i), w.Topic, patient{sub}, func(msg *message.Message) error { return w.job(msg, &s) })
	h.AddMiddleware(w.outside, ones)
	return nil
}

// patient subscribes again if that fails, as a service does that is started again: a connection may end at any time, also before its first use.
type patient struct{ *amqp.Subscriber }

func (p patient) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	for {
		messages, err := p.Subscriber.Subscribe(ctx, topic)
		if err == nil || ctx.Err() != nil {
			return messages, err
		}
		fmt.Fprintln(os.Stderr, "subscribing again, after:", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// logger writes what is read if a test fails.
func (w *worker) logger() watermill.LoggerAdapter { return watermill.NewStdLogger(false, false) }

func (w *worker) middleware() (message.HandlerMiddleware, error) {
	config, err := amqplater.Config(w.queue(), nil)
	if err != nil {
		return nil, err
	}
	publisher, err := amqp.NewPublisher(config, w.logger())
	if err != nil {
		return nil, err
	}
	again := watermillonce.Redelivery{Later: noting{publisher, w.diary}, LaterTopic: w.Topic}
	switch w.Mode {
	case "once":
		return watermillonce.Middleware(w.lock, &watermillonce.Options{Redelivery: again})
	case "in transaction":
		return intx.Middleware(w.lock, w.pool.Begin, &intx.Options{Redelivery: again})
	case "skip": // naive: who comes second has nothing to do
		return w.lockAlone(func(error) error { return nil }), nil
	case "spin": // naive: let the broker deliver it again
		return w.lockAlone(func(err error) error { return err }), nil
	case "nothing":
		return func(h message.HandlerFunc) message.HandlerFunc { return h }, nil
	}
	return nil, fmt.Errorf("mode %q", w.Mode)
}

// lockAlone is what is usually written.
func (w *worker) lockAlone(held func(error) error) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (made []*message.Message, err error) {
			err = w.lock.For(msg.UUID).Do(msg.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
				made, err = h(msg)
				return err
			})
			if errors.Is(err, holdlock.ErrHeld) {
				w.diary.note(later, msg.UUID, copyOf(msg), sentAt(msg))
				return nil, held(err)
			}
			return made, err
		}
	}
}

// noting notes what is sent to come back later.
type noting struct {
	message.Publisher
	diary diary
}

func (n noting) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		n.diary.note(later, msg.UUID, copyOf(msg), sentAt(msg))
		msg.Metadata.Set("sent", fmt.Sprint(time.Now().UnixMicro()))
		msg.Context().Value(notedKey{}).(*noted).later = true
	}
	return n.Publisher.Publish(topic, messages...)
}

// copyOf tells the two messages of a job apart.
func copyOf(msg *message.Message) holdlock.Token {
	n, _ := strconv.ParseUint(msg.Metadata.Get("copy"), 10, 64)
	return holdlock.Token(n)
}

// sentAt returns when the message was sent to come back, in µs, and 0 if it was not.
func sentAt(msg *message.Message) int {
	at, _ := strconv.Atoi(msg.Metadata.Get("sent"))
	return at
}

type notedKey struct{}

// noted is what became of one delivery.
type noted struct {
	token holdlock.Token
	run   int
	later bool
}

// outside is around all and notes how it ended.
func (w *worker) outside(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var n noted
		msg.SetContext(context.WithValue(msg.Context(), notedKey{}, &n))
		made, err := h(msg)
		switch {
		case n.token > 0 && (errors.Is(err, holdlock.ErrLost) || n.later):
			w.diary.note(lost, msg.UUID, n.token, n.run)
		case n.token > 0 && err == nil:
			w.diary.note(ended, msg.UUID, n.token, n.run)
		}
		if err == nil && !n.later {
			w.diary.note(acked, msg.UUID, copyOf(msg), sentAt(msg))
		}
		return made, err
	}
}

// job is what is to be done once. It is deaf to its context, as a paused process is.
func (w *worker) job(msg *message.Message, s *seat) error {
	n := msg.Context().Value(notedKey{}).(*noted)
	n.token, n.run = holdlock.Token(time.Now().UnixMicro()), 1
	if r := watermillonce.RunFrom(msg.Context()); r != nil {
		n.token, n.run = r.Lease.Token(), r.Number
		if r.Lapses != r.Number-1 { // no run of these tests fails
			w.diary.note(miscounted, msg.UUID, n.token, r.Lapses)
		}
	}
	w.diary.note(began, msg.UUID, n.token, n.run)
	if w.Mode == "in transaction" && msg.UUID == "1" {
		time.Sleep(3 * time.Second) // so that its twin loses patience
	}
	time.Sleep(w.CutAt)
	if i, _ := strconv.Atoi(msg.UUID); w.Cut > 0 && i%w.Cut == 0 && n.run == 1 && !amqp.IsMessageRedelivered(msg) {
		w.diary.note(cut, msg.UUID, n.token, n.run)
		_ = (*s.conn.Load()).Close()
	}
	time.Sleep(w.Job - w.CutAt)
	for w.Gate != "" {
		if _, err := os.Stat(w.Gate); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if tx := intx.Tx[pgx.Tx](msg.Context()); tx != nil {
		if _, err := tx.Exec(msg.Context(), "INSERT INTO effects (job, pid) VALUES ($1, $2)", msg.UUID, os.Getpid()); err != nil {
			return err
		}
	}
	w.diary.note(effect, msg.UUID, n.token, n.run)
	time.Sleep(w.After)
	return nil
}
