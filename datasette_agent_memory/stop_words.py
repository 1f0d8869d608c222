"""Words that say nothing of what a question is about.

Function words of the languages that questions are most often asked in here. Of Chinese
these are the bigrams, and the single characters, that keywords.py makes of them.
"""

from __future__ import annotations

_ENGLISH = """
a about above after again against all also am an and any are aren't as at be because been before being
below between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down
during each few for from further had hadn't has hasn't have haven't having he her here hers herself him
himself his how i i'd i'll i'm i've if in into is isn't it it's its itself just let's me more most my myself
no nor not of off on once only or other our ours ourselves out over own please same she should shouldn't so
some such than that that's the their theirs them themselves then there these they this those through to
too under until up us very was wasn't we we're we've were weren't what what's when where which while who
whom whose why will with won't would wouldn't you you're you've your yours yourself yourselves
"""

_CHINESE = """
的 了 着 过 吗 呢 吧 啊 呀 嘛 是 在 和 与 及 或 就 也 都 还 又 把 被 给 让 从 向 对 为 以 这 那
哪 几 什么 怎么 怎样 为什 哪里 哪个 哪些 哪儿 多少 几个 谁的 是谁 我们 你们 他们 她们 它们 自己
这个 那个 这些 那些 这样 那样 因为 所以 但是 如果 虽然 可以 没有 不是 就是 还是 或者 以及 一个
一些 一下 的是 是什 么是 有什 么样 的时 时候 了吗 是否 关于
"""

STOP_WORDS = frozenset(_ENGLISH.split()) | frozenset(_CHINESE.split())
