"""Model APIs: OpenAI's Chat Completions and Responses, Anthropic's Messages. One class per wire format.

`benchmark_runner.chat` has the public names for runners; judges build on the same modules.
"""
