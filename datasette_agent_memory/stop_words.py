"""Words that say nothing of what a question is about.

Function words of the languages that questions are most often asked in here. Of Chinese,
Japanese and Korean these are the bigrams, and the single characters, that keywords.py
makes of them. What says much in another of the languages is left out: Spanish "todo" and
"son", Portuguese "os", "nas" and "eu".
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

_SPANISH = """
al algo algún alguna algunas alguno algunos ante antes aquel aquella aquello aquí así aún aunque cada como
con cómo cuál cuáles cuando cuándo cuánto cuántos de del desde donde dónde el él ella ellas ellos en
entre esa esas ese eso esos esta está estaba están estar estas este esto estos estoy fue fueron
fuera ha había habían haber hace hacer hacia han hasta hay he hemos hizo la las le les lo los me mi mía
mientras mío mis mucho muchos muy nada ni ningún no nos nosotros nuestra nuestro o otra otras otro otros
para pero poco por porque puede pueden pues que qué quien quién quiénes se según ser será sí sido sobre
su sus también tanto te tenemos tener tengo ti tiene tienen tu tú tus un una unas uno unos
usted ustedes va vamos y ya yo
"""

_PORTUGUESE = """
à às ao aos aquela aquele aquilo as até cada com como da de dela dele deles depois do e é ela elas
ele eles em entre eram essa esse essas esses esta está estão estar estas estava este estes estou foi
foram há isso isto já lhe lhes mais mas me meu meus minha minhas muito muitos na não nem no nos nós
nossa nosso num numa o onde ou para pela pelas pelo pelos por porque porquê pode podem pois qual quais
quando quanto que quê quem se sem ser será seu seus só sobre sua suas também te tem têm temos tenho teu
teve tinha toda todas tudo tua um uma umas uns você vocês vou
"""

_ARABIC = """
في من على إلى الى عن مع هذا هذه ذلك تلك هؤلاء التي الذي الذين اللذان ما ماذا متى أين اين كيف لماذا لم لما
لن لا ليس ليست هل هو هي هم هن أنا انا نحن أنت انت أنتم كان كانت كانوا يكون تكون قد لقد كل بعض أو او أم ثم
أن إن ان أنه إنه بعد قبل عند عندما حتى إذا اذا لو بين كما لكن ولكن أي اي أيضا حول خلال منذ غير سوف كم
"""

_CHINESE = """
的 了 着 过 吗 呢 吧 啊 呀 嘛 是 在 和 与 及 或 就 也 都 还 又 把 被 给 让 从 向 对 为 以 这 那
哪 几 什么 怎么 怎样 为什 哪里 哪个 哪些 哪儿 多少 几个 谁的 是谁 我们 你们 他们 她们 它们 自己
这个 那个 这些 那些 这样 那样 因为 所以 但是 如果 虽然 可以 没有 不是 就是 还是 或者 以及 一个
一些 一下 的是 是什 么是 有什 么样 的时 时候 了吗 是否 关于
"""

_JAPANESE = """
は が を に で と も の へ や か ね よ です でし ます まし ませ した して しま しょ ょう てい いる いた いて
ある あっ あり から まで より ので のに こと もの これ それ あれ ここ そこ どこ この その あの どの どう なに
なん いつ だれ どれ って った すか たか のか とか では には とは でも ても ため よう とき など なる なっ ない
なか という いう 何が 何を 何の 何で 誰が
"""

_KOREAN = """
그 이 저 것 수 등 및 은 는 를 을 의 에 와 과 도 로 그리 리고 하지 지만 그러 러나 그래 래서 무엇 무슨 어떻
떻게 어떤 언제 어디 누구 누가 얼마 에서 에게 으로 부터 까지 이다 입니 니다 습니 합니 했습 있는 있다 있습
없는 하는 했다 우리 나는 너는 이것 그것 저것 여기 거기 대해 관해
"""

STOP_WORDS = frozenset(
    word
    for words in (_ENGLISH, _SPANISH, _PORTUGUESE, _ARABIC, _CHINESE, _JAPANESE, _KOREAN)
    for word in words.split()
)
