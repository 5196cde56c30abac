package wire

import "math"

// Bytes of text per token. The measured figures are of o200k, Qwen3, Llama 3.1
// and DeepSeek V3, in that order where they differ:
//
//	English           4.2  4.2  4.2  4.1      numeric JSON  2.3  1.4  2.3  2.1
//	Python            4.6  4.7  4.7  4.2      base64        1.5  1.4  1.4  1.4
//	Go                3.9  3.9  3.9  3.7      hex           1.8  1.1  1.8  1.8
//	JSON              3.2  3.2  3.2  3.0      digits        3.0  1.0  3.0  3.0
//	German            4.5  3.6  3.6  3.8      Chinese       3.7  4.3  3.6  4.6
//	Russian           6.9  5.8  5.9  6.6
//
// The estimate takes a middle of each kind; what a model is off by is learned by
// an Estimator. The bound takes what no model was seen to exceed by much: a token
// of a byte-level vocabulary has at least one byte, and words have more.
const (
	proseRatio, proseLeast = 4.0, 1.3
	denseRatio, denseLeast = 1.5, 1.0
	wideRatio, wideLeast   = 3.7, 1.0
)

// Tokens that are not text: what a chat template adds to a message (its role is
// measured as text) and to a chat, and a medium, whose cost depends on pixels
// that the gateway does not look at: a picture of 1024 by 1024 is 1,369 patches
// of 28 by 28, and 16,384 is the most that the Qwen-VL processors make of one.
const (
	messageTokens, messageMost = 4, 12
	chatTokens                 = 3
	mediaTokens, mediaMost     = 1400, 16384
)

// Estimate is the expected number of prompt tokens. Token ids are exact.
func Estimate(c Content) int {
	return c.TokenIDs + int(math.Ceil(estimateText(c)))
}

// estimateText is the part of the estimate that can be wrong.
func estimateText(c Content) float64 {
	return float64(c.Bytes[Prose])/proseRatio + float64(c.Bytes[Dense])/denseRatio +
		float64(c.Bytes[Wide])/wideRatio + float64(mediaTokens*c.Media) + template(c, messageTokens)
}

// Bound is a number of prompt tokens that is hardly ever exceeded. It is two to
// three times the estimate, so it is for proving that something fits, and so
// needs no exact count: whatever fits by Bound fits, whatever doesn't fit by
// Estimate is not worth asking, and between the two an engine's tokenizer tells.
// Reservations are made by the estimate.
func Bound(c Content) int {
	return c.TokenIDs + int(math.Ceil(float64(c.Bytes[Prose])/proseLeast+float64(c.Bytes[Dense])/denseLeast+
		float64(c.Bytes[Wide])/wideLeast+float64(mediaMost*c.Media)+template(c, messageMost)))
}

func template(c Content, each int) float64 {
	if c.Messages == 0 {
		return 0
	}
	return float64(chatTokens + each*c.Messages)
}
