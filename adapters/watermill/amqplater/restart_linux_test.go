package amqplater

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/holdlock/holdlock/internal/testenv"
)

// What waits when the broker is killed comes back when it runs again: it was acknowledged, so nobody else has it. The waiting queues were made
// before a clean stop of the broker, because RabbitMQ forgets a quorum queue that it made shortly before it is killed.
func TestWaitingSurvivesTheBroker(t *testing.T) {
	broker := testenv.StartRabbitMQ(t)
	const n, delay = 50, 3 * time.Second
	queue := amqp.NewDurableQueueConfig(broker.URL())
	queue.Marshaler = Marshaler(queue.Marshaler)
	configs := map[string]amqp.Config{}
	for topic, classic := range map[string]bool{"quorum": false, "classic": true} {
		var err error
		if configs[topic], err = Config(queue, &Options{Delay: delay, Classic: classic}); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(f func(topic string, config amqp.Config, p *amqp.Publisher) error) {
		for topic, config := range configs {
			p, err := amqp.NewPublisher(config, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f(topic, config, p), p.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(func(topic string, config amqp.Config, p *amqp.Publisher) error {
		receive(t, broker.URL(), topic, 0) // makes the queue itself
		channel, err := p.Connection().Channel()
		if err != nil {
			return err
		}
		return Declare(channel, config, topic)
	})
	broker.Terminate()
	broker.Restart(t)
	begin := time.Now()
	publish(func(topic string, _ amqp.Config, p *amqp.Publisher) error {
		var work []*message.Message
		for i := range n {
			work = append(work, message.NewMessage(fmt.Sprint(i), []byte("work")))
		}
		return p.Publish(topic, work...)
	})
	broker.Restart(t)
	for topic := range configs {
		if got := receive(t, broker.URL(), topic, n); len(got) != n || time.Since(begin) < delay {
			t.Errorf("%s: %d of %d messages after %s", topic, len(got), n, time.Since(begin))
		}
	}
}

// receive takes messages until it has n different ones.
func receive(t *testing.T, url, topic string, n int) map[string]bool {
	t.Helper()
	conn, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(topic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	if n == 0 {
		return got
	}
	deliveries, err := channel.Consume(topic, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := Marshaler(amqp.DefaultMarshaler{})
	for give := time.After(3 * time.Minute); len(got) < n; {
		select {
		case d := <-deliveries:
			msg, err := m.Unmarshal(d)
			if err != nil {
				t.Fatal(err)
			}
			got[msg.UUID] = true
		case <-give:
			return got
		}
	}
	return got
}
