package main

import (
	"encoding/json"
	"fmt"
	"os"

	"headgate/config"
	"headgate/gateway"
)

// Where a value comes from that is not the file's as it is now.
const (
	fromCommandLine = "command line"
	fromEarlier     = "earlier file" // it was changed since, and is not taken over or waits for a restart
)

// settings tell operators of the configuration.
func (s *server) settings() *gateway.Settings {
	return &gateway.Settings{Show: s.showSettings, Check: s.checkSettings}
}

func (s *server) showSettings() (*gateway.SettingsView, error) {
	cfg := s.config.Load()
	v := &gateway.SettingsView{Changes: []gateway.SettingChange{}, Problems: []gateway.SettingProblem{}}
	origins := map[string]string{}
	if s.load != nil {
		now, problems, err := s.load()
		v.Problems = settingProblems(problems)
		if err != nil {
			v.Problems = append(v.Problems, gateway.SettingProblem{Text: err.Error()})
		}
		if v.Refused = now == nil; !v.Refused {
			v.Changes = settingChanges(cfg, now)
			for _, c := range config.Changes(now, cfg) {
				origins[c.At] = fromEarlier
			}
		}
	}
	for path := range s.said {
		origins[path] = fromCommandLine
	}
	shown, err := safe(cfg, origins)
	if err != nil {
		return nil, err
	}
	v.Effective, v.Provenance = shown.Effective, shown.Provenance
	if s.load != nil {
		v.File = shown.File
	}
	return v, nil
}

// checkSettings judges a text as headgate validate does a file.
func (s *server) checkSettings(text []byte) (*gateway.CheckView, error) {
	v := &gateway.CheckView{Changes: []gateway.SettingChange{}}
	cfg, problems := config.Parse("", text)
	if cfg == nil {
		v.Problems = settingProblems(problems)
		return v, nil
	}
	v.Good = true
	v.Problems = settingProblems(append(problems, cfg.Unset(os.Getenv)...))
	inForce := s.config.Load()
	if file := cfg.Identity.KeysFile; file != "" && !cfg.TakeKeys(inForce) {
		v.Problems = append(v.Problems, gateway.SettingProblem{Path: "keys_file", Text: "it is not read here: headgate validate reads it", Warning: true})
	}
	if s.override != nil {
		s.override(cfg)
	}
	v.Changes = settingChanges(inForce, cfg)
	shown, err := safe(cfg, nil)
	if err != nil {
		return nil, err
	}
	v.Effective = shown.Effective
	return v, nil
}

// shownSettings is a configuration with nothing in it that is not to be shown.
type shownSettings struct {
	File                  string
	Effective, Provenance json.RawMessage
}

func safe(cfg *config.Config, origins map[string]string) (*shownSettings, error) {
	b, err := config.ShowSafe(cfg, origins)
	if err != nil {
		return nil, err
	}
	v := new(shownSettings)
	if err := json.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return v, nil
}

func settingProblems(problems []config.Problem) []gateway.SettingProblem {
	all := []gateway.SettingProblem{}
	for _, p := range problems {
		all = append(all, gateway.SettingProblem{File: p.File, Line: p.Line, Column: p.Column, Path: p.Path, Text: p.Text, Warning: p.Warning})
	}
	return all
}

func settingChanges(old, new *config.Config) []gateway.SettingChange {
	all := []gateway.SettingChange{}
	for _, c := range config.Changes(old, new) {
		all = append(all, gateway.SettingChange{Path: c.Path, Old: c.Old, New: c.New, Restart: c.Restart})
	}
	return all
}
