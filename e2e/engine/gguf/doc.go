// Package gguf writes llama models with random weights, so that a real
// inference engine (anything built on llama.cpp) has something to schedule
// where no model can be downloaded.
//
// The file is valid GGUF version 3, architecture llama. Same Options, same
// bytes, on every machine; about two seconds for 30 MB. Plain noise would be
// useless to a test, so four things are arranged:
//
//   - Every generated token is one visible word. The vocabulary holds the 256
//     byte pieces, the printable ASCII characters, and some hundreds of English
//     words with all their prefixes, because an SPM tokenizer reaches a word only
//     by merging its prefixes one letter at a time. A generated word therefore
//     tokenizes back to the id it came from, and continuing a text equals
//     continuing its ids.
//   - A bias per token, which the llama architecture lacks: dimension 0 of the
//     residual stream is 1 in every embedding and no layer writes to it, so
//     column 0 of the output matrix is added to each logit as a constant. It
//     silences all that is not a word, and sets the odds of the end of text.
//   - Every token depends on the whole history. Attention is made peaky, and
//     what it brings is as strong as the last token's own embedding; so an answer
//     that was resumed from a wrong prefix reads differently within a few words.
//   - Lengths are geometrically distributed with mean Options.Mean at
//     temperature 1; a model of mean 0 never ends by itself.
package gguf
