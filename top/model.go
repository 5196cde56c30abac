package top

import (
	"context"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"headgate/console/now"
)

// Config is what a Model asks, and how it shows it.
type Config struct {
	// Ask asks the admin listener once.
	Ask func(ctx context.Context) (*now.Now, error)
	// Reason says why it was not answered.
	Reason func(error) string
	// Every is the pause between an answer and the next question.
	Every time.Duration
	// Look has what is the same in all pictures.
	Look Look
}

const (
	// askTime bounds one question.
	askTime = 5 * time.Second
	// away is the least pause after a question without an answer.
	away = time.Second
)

// Model is a terminal's picture. What somebody does and what is told are messages, so that it
// needs no other clock than the one that they carry.
type Model struct {
	cfg  Config
	look Look
	now  *now.Now  // the last that was told; nil: nothing yet
	at   time.Time // when
}

// Messages beside those of keys and of the terminal's size.
type (
	told struct {
		now *now.Now
		err error
		at  time.Time
	}
	due struct{}
)

// New makes a model.
func New(cfg Config) Model {
	cfg.Look.Keys = true
	return Model{cfg: cfg, look: cfg.Look}
}

// Run shows it until somebody ends it or ctx does.
func Run(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	_, err := tea.NewProgram(New(cfg), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out)).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Init asks.
func (m Model) Init() tea.Cmd { return m.ask }

func (m Model) ask() tea.Msg {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	n, err := m.cfg.Ask(ctx)
	return told{n, err, time.Now()}
}

// Update takes a message.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.look.Width, m.look.Height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m.key(msg.String())
	case due:
		return m, m.ask
	case told:
		pause := m.cfg.Every
		if msg.err != nil {
			m.look.Lost, m.look.Since = m.cfg.Reason(msg.err), m.at
			pause = max(pause, away)
		} else {
			m.now, m.at, m.look.Lost = msg.now, msg.at, ""
		}
		return m, tea.Tick(pause, func(time.Time) tea.Msg { return due{} })
	}
	return m, nil
}

func (m Model) key(key string) (tea.Model, tea.Cmd) {
	switch key {
	case "q", "ctrl+c":
		return m, tea.Quit
	case "?":
		m.look.Help, m.look.Scroll = !m.look.Help, 0
	case "esc":
		m.look.Help, m.look.Scroll = false, 0
	case "tab", "right", "l":
		m.step(1)
	case "shift+tab", "left", "h":
		m.step(-1)
	case "down", "j":
		m.look.Scroll = min(m.look.Scroll+1, m.deepest())
	case "up", "k":
		m.look.Scroll = max(m.look.Scroll-1, 0)
	}
	return m, nil
}

// step chooses another pool.
func (m *Model) step(by int) {
	if m.now == nil || len(m.now.Pools) == 0 {
		return
	}
	n := len(m.now.Pools)
	m.look.Pool = m.now.Pools[(chosen(m.now, m.look.Pool)+by+n)%n].Name
	m.look.Scroll = 0
}

// deepest is how far there is something to scroll to.
func (m *Model) deepest() int {
	whole := m.look
	whole.Height = 0
	return max(lines(Text(m.now, whole))-m.look.Height, 0)
}

func lines(text string) (n int) {
	for _, b := range []byte(text) {
		if b == '\n' {
			n++
		}
	}
	return n
}

// View is the picture.
func (m Model) View() tea.View {
	text := ""
	if m.look.Width > 0 { // before that nobody knows for how much there is room
		text = Text(m.now, m.look)
	}
	v := tea.NewView(trimmed(text))
	v.AltScreen = true
	v.WindowTitle = "headgate top " + m.look.URL
	return v
}

// trimmed leaves out the last line's end, which would be a line of its own.
func trimmed(text string) string {
	if n := len(text); n > 0 && text[n-1] == '\n' {
		return text[:n-1]
	}
	return text
}
