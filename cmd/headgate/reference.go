package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"headgate/telemetry"
)

// The commands' own descriptions are their man pages and docs/cli.md. Both are made here and
// not by cobra's package for that, which takes them for Markdown: tables and examples, which
// are set off by blanks, would run into paragraphs, and it links a parser of Markdown and one
// of YAML for two pages of code.

// described are a command and all below it that a user sees.
func described(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			all = append(all, described(c)...)
		}
	}
	return all
}

// block is a part of a description: a paragraph, or lines that stay as they are.
type block struct {
	lines []string
	asIs  bool
}

// blocks cuts a description where it has empty lines.
func blocks(text string) (all []block) {
	var b block
	for _, l := range append(strings.Split(strings.TrimSpace(text), "\n"), "") {
		if l = strings.TrimRight(l, " \t"); l != "" {
			b.asIs = b.asIs || strings.HasPrefix(l, " ") || strings.HasPrefix(l, "\t")
			b.lines = append(b.lines, l)
			continue
		}
		if len(b.lines) > 0 {
			all = append(all, b)
		}
		b = block{}
	}
	return all
}

// synopsis is how a command is called.
func synopsis(c *cobra.Command) string {
	if c.HasAvailableSubCommands() && !c.Runnable() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

// long is a command's description.
func long(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short + "."
}

// flagsOf are a command's own flags, and those that it has from above.
func flagsOf(c *cobra.Command) (own, above []*pflag.Flag) {
	visit := func(to *[]*pflag.Flag) func(*pflag.Flag) {
		return func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				*to = append(*to, f)
			}
		}
	}
	c.NonInheritedFlags().VisitAll(visit(&own))
	c.InheritedFlags().VisitAll(visit(&above))
	return own, above
}

// called is a flag as it is written, and the word for its value.
func called(f *pflag.Flag) (names, value, usage string) {
	value, usage = pflag.UnquoteUsage(f)
	names = "--" + f.Name
	if f.Shorthand != "" {
		names = "-" + f.Shorthand + ", " + names
	}
	return names, value, usage
}

// usual is a flag's default, where that is worth saying.
func usual(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "false", "0", "[]", "0s":
		return ""
	}
	return f.DefValue
}

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the man pages of all commands into a folder", Args: cobra.ExactArgs(1),
		Long: `Write the man pages of all commands into a folder, which is made if there is none:
headgate.1, headgate-serve.1, and so on. They say the same as help does.

  headgate man ~/.local/share/man/man1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			all := described(cmd.Root())
			for _, c := range all {
				if err := os.WriteFile(filepath.Join(args[0], manName(c)+".1"), []byte(manPage(c)), 0o644); err != nil {
					return fmt.Errorf("man pages: %w", err)
				}
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d pages in %s\n", len(all), args[0])
			return err
		},
	}
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// roff is text without anything that roff would take for its own.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// manPage is a command's page.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`.TH "%s" "1" "" "headgate %s" "Headgate"`, strings.ToUpper(manName(c)), telemetry.ReadBuild().Version)
	p(".SH NAME\n%s \\- %s", roff(manName(c)), roff(lowerFirst(c.Short)))
	p(".SH SYNOPSIS\n.nf\n%s\n.fi", roff(synopsis(c)))
	p(".SH DESCRIPTION")
	for i, block := range blocks(long(c)) {
		if i > 0 {
			p(".PP")
		}
		if block.asIs {
			p(".nf")
		}
		for _, l := range block.lines {
			p("%s", roff(l))
		}
		if block.asIs {
			p(".fi")
		}
	}
	own, above := flagsOf(c)
	for _, part := range []struct {
		title string
		flags []*pflag.Flag
	}{{"OPTIONS", own}, {"OPTIONS FROM ABOVE", above}} {
		if len(part.flags) > 0 {
			p(".SH %s", part.title)
		}
		for _, f := range part.flags {
			names, value, usage := called(f)
			p(".TP\n\\fB%s\\fR %s", roff(names), roff(value))
			if d := usual(f); d != "" {
				usage += " (default " + d + ")"
			}
			p("%s", roff(usage))
		}
	}
	var also []string
	if c.HasParent() {
		also = append(also, manName(c.Parent()))
	}
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() && s.Name() != "help" {
			also = append(also, manName(s))
		}
	}
	if len(also) > 0 {
		slices.Sort(also)
		for i, name := range also {
			also[i] = `\fB` + roff(name) + `\fR(1)`
		}
		p(".SH SEE ALSO\n%s", strings.Join(also, ",\n"))
	}
	return b.String()
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// cliPage is docs/cli.md.
func cliPage(root *cobra.Command) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`# Commands

This page is what the commands say of themselves (%s); it is written by

    go test ./cmd/headgate -run TestReference -rewrite

The same as man pages: %s. Completions of commands, flags, files and names for a shell: %s.

An error is one line on the standard error, with the way out below it, and exit status 1, unless a command says otherwise.
`, "`headgate COMMAND --help`", "`headgate man DIR`", "`headgate completion bash`, `zsh`, `fish` or `powershell`")
	all := described(root)
	p("| | |\n|---|---|")
	for _, c := range all[1:] {
		p("| [`%s`](#%s) | %s |", c.CommandPath(), anchor(c), cell(c.Short))
	}
	for _, c := range all[1:] {
		p("\n## %s\n\n```text\n%s\n```\n\n```text\n%s\n```", c.CommandPath(), synopsis(c), strings.TrimSpace(long(c)))
		own, above := flagsOf(c)
		if len(own)+len(above) > 0 {
			p("\n| flag | | default |\n|---|---|---|")
		}
		for _, f := range slices.Concat(own, above) {
			names, value, usage := called(f)
			p("| `%s` | %s | %s |", strings.TrimSpace(names+" "+value), cell(usage), code(usual(f)))
		}
	}
	return b.String()
}

func anchor(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// cell is text as a cell of a table has it.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "\n", " ").Replace(text)
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}
