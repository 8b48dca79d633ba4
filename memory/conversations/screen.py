"""The screen between conversations and memory: what is kept out, what is blackened, and what a person has to look at first.

    redact      secrets (keys, tokens, passwords, PINs, card numbers), and with `pii` addresses, phone and identity numbers, become `[secret]`
    of_thread   words that were told as passwords or PINs are blackened wherever they stand in their thread
    suspicion   texts that read like instructions to the agent: a user's turn with one is quarantined, with what follows in its thread
    learnable   messages without calls of tools that are never to be learned, and without their results
    steps       the steps without the words of tools, and with the origin of values that only a tool has said (origins.py)
    retell      the same, of steps that were recorded elsewhere

The patterns know the usual forms. They are no proof: prompts show memory as data all the same (nodes/fence.py).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ..errors import UserError, did_you_mean
from ..records import Transition
from .messages import AT_ONCE, REPLY, StateKey, call_text, steps, text_read, told_steps
from .origins import FROM_TOOL, Origins, readable
from .reviews import MARK, REJECTED

__all__ = ["Screen", "Suspicion"]

NOTHING_READ = " "
"""Observation of a step that read nothing. If it were empty, prompts would show the state in its place, with all that tools said."""

_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|hf)[-_][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}|\b(?:Bearer|Basic)\s+[A-Za-z0-9+/_.=-]{16,}"
    r"|(?<=://)[^\s/:@]*:[^\s/@]+(?=@)",
    re.DOTALL,
)
_NAMED = re.compile(r"(?i)\b((?:api[_ -]?key|secret|token)\b[\"']?\s*(?:[:=]|is\b)\s*[\"']?)([^\s\"',;]{6,})")
_VERB = r"\s*(?:[:=]|(?:is|was|ist|war|lautet|es|era|est)\b:?)\s*"
_IS = rf"{_VERB}[\"'`\u201c\u201e]?"
_NO_PASSWORD = (
    r"(?:[^\W\d]+(?:ed|ing|able|ly|[ckp]t)|lost|wrong|correct|right|good|weak|strong|safe|secure|secret|stolen|forgotten|broken|known|unknown|gone|invalid|"
    r"empty|blank|reset|there|here|what|also|still|never|always|again|back|been|fine|very|only|same|long|short|different|please|without|"
    r"because|your|this|that|from|case|when|nicht|falsch|ung\u00fcltig|vergessen|jetzt|immer|noch|bitte)[.!?:)]*(?![^\s,;\"'])"
)
_PASSWORD_NAME = r"(?:(?<=\bmy )pass|senha|pass?[ -]?(?:word|wd|phrase|code|wort)|code[ -]?word|pwd|pw|kennwort|contrase\u00f1a|mot de passe)\b"
_PASSWORD = re.compile(
    rf"(?i)\b({_PASSWORD_NAME}[\"']?"
    rf"(?:(?:\s+(?:for|to|of|at|f\u00fcr|zu)(?:\s+[\w.-]+){{1,4}}?)?{_IS}(?!{_NO_PASSWORD})"
    r"|(?:(?<=\bmy password)\s+to|['\u2019]s)?\s+(?=\S*\d)(?=\S*[a-z])(?=\S{6})))([^\s\"'`,;:=][^\s\"'`,;]{3,})"
)
"""A password after its name and `is`, without words such as `wrong`; or one of letters and digits right after its name."""
_SETTING = re.compile(
    r"(?i)(?<![\w-])((?:[\w-]{0,60}?(?:secret|token|pass(?:word|wd|phrase)|pwd|(?:api|access|account|secret|private|master|signing|encryption|auth)"
    r"[_-]?key(?:[_-]?id)?)|(?:[\w-]{0,60}[_-])?(?:pass(?==)|pw)|(?:[\w-]{0,60}[_-]|(?<![a-z] ))pass)[\"']?\s*[:=]\s*[\"'`]?)"
    rf"(?!{_NO_PASSWORD})(?:(?=\S*\d)(?=\S*[a-z])[^\s\"'`,;]{{6,}}|(?<==)[^\s\"'`,;]{{8,}})"
)
"""A setting whose name ends with the word for a secret, as `DB_PASSWORD=` and `"SecretAccessKey":`, with a value of letters and digits."""
_PIN_NAME = r"(?:(?:pin|otp|cvv|cvc|geheimzahl)(?:[ -]?(?:code|number|nummer))?|(?:one[ -]time|security|verification|access)[ -](?:code|pin))\b"
_PIN = re.compile(rf"(?i)\b({_PIN_NAME}[\"']?(?:{_IS}|\s+(?:(?:from\s+\S+\s+)?to\s+)?))\d{{3,12}}\b(?![.,:/-]\d)")
_MIXED = r"(?=[^\s\"'`,;:()]*\d)(?=[^\s\"'`,;:()]*[a-z])[^\s\"'`,;:()]{5,}"
_AS = r"[\"'`]?\s+(?:is|was|as|ist|war|als|(?:should|shall|will) be)\s+(?:(?:my|our|the|a|mein|meine|das|die)\s+)?(?:(?:new|old|current|neues?|altes?)\s+)?"
_SECRET_NAME = f"(?:{_PASSWORD_NAME}|{_PIN_NAME})"
_FOREIGN_NAME = r"(?:\b(?:\u043f\u0430\u0440\u043e\u043b[\u044c\u044f\u0435]\w{0,2}|has[l\u0142][oaem]\w?|\u015fifre\w{0,4}|parola\w{0,4}|wachtwoord|l\u00f6senord\w*|passord\w*|adgangskode\w*|salasana\w*|jelsz[\u00f3a]\w*|hesl[oa]|palavra[- ]passe|clave)\b|\u5bc6[\u7801\u78bc]|\u53e3\u4ee4|\u30d1\u30b9\u30ef\u30fc\u30c9|\u6697\u8a3c\u756a\u53f7|\ube44\ubc00\ubc88\ud638)"
_VALUE = rf"(?:{_MIXED}|\d{{3,12}}\b(?![.,:/-]\d))"
_NO_WORD = (
    r"(?:and|or|the|an?|in|is|are|not|no|to|it|its|of|for|my|your|our|on|at|by|with|this|that|too|very|still|also|never|always|again|back|been|wrong|right|"
    r"good|bad|same|please|what|now|new|old|lost|gone|here|there|when|as|i|we|you|so|but|because|since|if|only|has|have|must|should|can|will|does|"
    r"\w+ing|\w{3,}ed|\w+able|\w+ly)\b"
)
_FRAMED = tuple(
    re.compile(f"(?i){frame}")
    for frame in (
        rf"()(?<![^\s\"'`]){_MIXED}(?={_AS}{_SECRET_NAME})",
        rf"()\b\d{{3,12}}(?={_AS}{_PIN_NAME})",
        rf"\b((?:set|chang\w+|reset\w*|updat\w+)\s+(?:\w+\s+)?{_PASSWORD_NAME}\s+(?:from\s+\S+\s+)?to\s+[\"'`]?){_MIXED}",
        rf"\b({_SECRET_NAME}\s+from\s+){_VALUE}(?=\s+to\b)",
        rf"\b(make\s+[\"'`]?){_VALUE}(?=[\"'`]?\s+(?:my|our|the)\s+(?:new\s+)?{_SECRET_NAME})",
        rf"\b({_SECRET_NAME}\s+(?:(?:should|shall|will|must|used to) be|(?:(?:that|which)\s+)?(?:I|we|you)\s+(?:\w+\s+){{1,3}}?(?:is|was))\s+[\"'`]?){_VALUE}",
        rf"\b({_SECRET_NAME}(?:[^.?!\n]{{0,40}}[;,.]\s+(?:it|that)(?:['\u2019]s|\s+(?:is|was))|,[^,.?!\n]{{1,30}},\s+(?:is|was))\s+[\"'`]?){_VALUE}",
        r"()(?:(?m:^)|(?<=[.!?:;,] ))(?!(?:what|where|which|this|that|here|there|when|nothing|something)\b)[a-z]{4,}(?= is my (?:new )?password\b(?! [a-z]))",
        rf"\b({_SECRET_NAME}(?:[\s*_\"'`]|</\w+>)*(?:\||[-=]>|\u2192|:|[\u00e8\u00e9]\s)(?:[\s*_\"'`]|&nbsp;)*){_VALUE}",
        rf"\b({_SECRET_NAME}\s*[,?(]+\s*(?:it(?:'s| is)\s+)?[\"'`]?)(?!\d+[.,:/-]?\d*\s\w){_VALUE}",
        rf"\b({_PASSWORD_NAME}{_VERB}(?P<quote>[\"'`]))(?=\S+ )[^\"'`\n]{{4,60}}(?=(?P=quote))",
        rf"({_FOREIGN_NAME}(?:\s+(?!\d+\b)|(?: \w+){{0,2}}?\s*(?:[-:=\uff1a\u2013\u2014\u6210\u662f\u4e3a\u70ba\u306f\u304c\ub294\uc740]|(?:to|je|jest|is|es|er|on|\u00e4r|\u00e9|\u044d\u0442\u043e|\u0446\u0435)\b)\s*)[\"'`]?)(?:(?=[^\s\"'`,;:()\u3000-\uffef]*\d)(?=[^\s\"'`,;:()\u3000-\uffef]*[a-z\u00df-\u04ff])[^\s\"'`,;:()\u3000-\uffef]{{5,}}|\d{{4,12}}(?!\w|[.,:/-]\d))",
        rf"\b((?:(?:security|secret) answer|answer to (?:my|the|your) (?:security|secret) question|(?:security|secret) question\b[^\n]{{0,60}}? answer)\b{_IS})(?!{_NO_PASSWORD})(?-i:(?=[^\s,;]*[A-Z\d])[^\s\"'`,;]{{3,}}(?: [A-Z]\w+)*)",
        rf"\b(pass[ -]?phrase\b{_IS})(?!(?:not|wrong|too|very|still|also|never|in|nicht|the same|same|see|on|for|with|at|\w+(?:ed|ing|able))\b)[a-z]+(?:[ -][a-z]+){{2,}}",
        rf"\b((?:log-?in(?:\s+is)?\s|(?:log-?in|user(?:[ -]?name)?|credentials)\s*[:=])\s*[^\s/|,;]+\s*(?:[/|]|,?\s+pass\s*[:=])\s*|credentials:?\s+[^\s/|,;:]+[:/]|(?:credentials\b|log[ -]?in\b)(?: (?:are|is|with|as))?:?\s+[^\s/|,;:]+\s*(?:/|,|\band\b)\s*){_MIXED}",
        rf"\b((?:(?:door|gate|garage|alarm|safe|vault|entry|locker|wi-?fi|wlan|network|router|recovery|unlock)[ -](?:code|key)\b|(?:licen[cs]e|product|activation)[ -]key\b)(?: (?:at|for|of|to|in)(?: \w+){{1,3}}?)?(?:{_IS}|\s+)){_VALUE}",
        r"\b((?:recovery|seed|mnemonic)[ -](?:words?|phrase)\s*(?:[:=]|(?:are|is)\b:?)\s*[\"'`]?)(?:(?!"
        + _NO_WORD
        + r")[a-z]+[ ,-]*){4,}(?<![ ,-])",
        rf"\b({_PASSWORD_NAME}{_IS})(?:(?!{_NO_WORD})[a-z]{{2,}}[ -]){{2,}}(?!{_NO_WORD})[a-z]{{2,}}(?=[.,;!\"'\u201d]|\s*(?:\n|\Z))",
        r"(<(?:pass(?:word|wd|phrase)?|pwd|pin|otp|secret|token|api_?key)>\s*)[^\s<]{3,}",
        rf"\b({_PASSWORD_NAME}\s+[\"'`]|{_PASSWORD_NAME}\s*(?:\(\w+\)|\s(?:nueva|actual|vieja|neu|alt))\s*[:=]\s*|user\s+\S+,?\s+pass\s+){_MIXED}",
        rf"\b({_SECRET_NAME}(?:['\u2019]s\s+|\b[^.?!\n]{{0,60}}\bis now\s+)){_VALUE}",
        rf"()(?:(?<=\bit['\u2019]s ){_MIXED}(?=,\s+my\s+{_PASSWORD_NAME})|(?<=\buse ){_MIXED}(?=\s+to (?:log|sign)(?: \w+)? in\b)|(?<=\w:)(?!\S*/){_MIXED}(?=@\w))",
        r"\b(codes?\b[^.?!\n\d]{0,25}\b(?:texted|sms)\b[^.?!\n\d]{0,20}(?:is|was|:)\s*)\d{4,8}\b",
        rf"\b({_PIN_NAME}{_IS})(?:(?:zero|oh|one|two|three|four|five|six|seven|eight|nine)[ ,-]*){{3,}}(?<![ ,-])",
        rf"\b(maiden name\b{_IS})(?-i:[A-Z]\w+)",
    )
)
"""Secrets before their names, after those of other languages, in quotes, of several words, and beside the name of a login."""
_ASKS = re.compile(
    rf"(?i)(?:{_SECRET_NAME}|{_FOREIGN_NAME}|\bsms code\b|\bcode (?:that |which )?(?:we|I)(?: have|['\u2019]ve)? (?:just )?(?:sent|texted)\b)[^.?!\n]{{0,40}}[?:]\s*\Z"
)
_ANSWER = re.compile(
    rf"(?i)\s*(?!(?:yes|no|ja|nein|yep|nope)\b)(?:[^\s\d]+\s+){{0,4}}?[\"'`]?({_MIXED}|\d{{3,12}})[\"'`.!]*\s*\Z"
)
"""A text that ends by asking for a secret, and an answer that is one: a value with digits behind a few words."""
_ARGUMENT = re.compile(
    r"(?:[^=]*(?:[_-]|(?-i:[a-z](?=[A-Z]))))?(?:pw|(?:pin|otp|cvv|cvc|geheimzahl|(?:access|security|verification)(?=[_-]?code))"
    r"(?:[_-]?(?:code|number|nummer))?)=.+"
    r"|[^=]*(?:pass(?:word|wd|phrase|code|wort)|pwd|kennwort|contrase\u00f1a)s?(?:[_-]?(?:\d|again|confirm\w*|hash|new|old|repeat\w*))?=.+"
    r"|[^=]*(?:secrets?|token|(?:api|access|account|secret|private|master|signing|encryption|auth)[_-]?keys?(?:[_-]?id)?)=.{6,}",
    re.IGNORECASE | re.DOTALL,
)
"""An argument of a call, as `name=value`, that is a secret by its name, whatever its value is like."""
_TELLING = (*_FRAMED, _SETTING, _NAMED, _PASSWORD, _PIN)
_TOKEN = re.compile(
    r"[^\s\"'`,;:=()\[\]{}<>/|\\\u201c\u201d\u201e.!?]+(?:[.!?]+[^\s\"'`,;:=()\[\]{}<>/|\\\u201c\u201d\u201e.!?]+)*"
)
"""A word by which a secret is found again, without the marks around it."""
LEAST_SECRET_CHARS = 4
"""Characters from which such a word is blackened wherever it stands."""
_CARD = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")
_PII = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b|\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b|\b\d{3}-\d{2}-\d{4}\b"
    r"|(?<![\w-])(?:\+\d{1,3}[ .-]?)?(?:\(\d{3}\)|\d{3})[ .-]\d{3}[ .-]\d{4}(?![\w-])|\+\d(?:[ .-]?\d){8,13}\b"
)


def _any_of(*alternatives: str) -> str:
    return f"(?:{'|'.join(alternatives)})"


_PRIVILEGE = _any_of(
    r"\b(?:is|are|am|be|as|of)\b(?: [\w-]+){0,3}? (?:(?:pre-?)?(?:approved|authori[sz]ed)|exempt|trusted|entitled|privileged|accepted|(?:super-?)?admin\w*|supervisors?|super ?users?|allowed)\b(?! (?:by|to (?:collect|pick|sign|receive|take))\b)",
    r"\bha(?:s|ve)(?: [\w-]+){0,2}? (?:admin\w*|root|unlimited|privileges?|clearance)\b",
    r"\b(?:never (?:needs?|pays?|requires?|asks?|checks?|charges?|verif(?:y|ies))|(?:skips?|bypass(?:es)?)(?: [\w-]+){0,2}? (?:checks?|verif\w+|identi\w+|questions?|steps?|approvals?))\b",
    r"\b(?:is|are) to be (?:refunded|reimbursed|credited|approved|granted|waived|accepted|cancell?ed|paid)\b",
    r"\b(?:(?:is|are) staff|works? for you|may (?:see|read|change|cancel|access))\b",
    r"\b(?:(?:needs?|requires?) no|no(?: [\w-]+){1,2} is (?:needed|required)|no longer (?:needed|required))\b",
    r"\b(?:always (?:refund|approve|waive|grant|accept|skip)|(?:refund|approve|waive|grant|accept|skip)s? (?:every|all|any)\w*)\b",
    r"\b(?:is|are) (?:always )?(?:a |the )?(?:right|correct|best) (?:answer|choice|thing|solution|call)s?\b",
    r"\bwithout (?:an? |any )?(?:proof|receipt|return|check|verification|asking|approval)\b",
    r"(?<!\bmy )(?<!\bour )\b(?:customers?|members?|users?|clients?|every(?:one|body)|who\w*)\b[^.?!\n]{0,20} (?:gets?|receives?)\b",
    r"\b(?:for (?:every(?:one|body)|all (?:customers|users))|deserves?|always right|free for (?:all|every\w*))\b",
    r"(?<!\bI )(?<!\bwe )\b(?:gets?|receives?|is|means?) (?:an? )?(?:(?:full|double|immediate) )?(?:refund|reimbursement|voucher|coupon)s?(?! (?:is|was|of|for|letter))\b",
    r"\brefunds? (?:is|are) (?:always )?(?:fine|ok|okay|granted|automatic)\b",
    r"(?<!\bI )(?<!\bwe )\b(?:needn['\u2019]?t|need not|do(?:es)?n['\u2019]?t (?:have|need) to)\b",
    r"\b(?:gratis|kostenlos|gratuite?s?)\b|\bbekomm(?:t|en)\b[^.?!\n]{0,30}zur\u00fcck|\u0431\u0435\u0441\u043f\u043b\u0430\u0442\u043d|\u0432\u043e\u0437\u0432\u0440\u0430[\u0449\u0442]",
    r"freigeschaltet|genehmigt|berechtigt|befreit|(?:ohne|keine?n?) (?:beleg|nachweis|pr\u00fcfung)",
    r"aprobad|autorizad|sin (?:recibo|prueba)|approvat|autorizzat|senza (?:prova|ricevuta)|approuv|autoris\u00e9|droit au|sans (?:preuve|justificatif)",
    r"(?:rembourse|reembolsa|rimborsa)\w* (?:toujours|siempre|sempre)",
)
"""What a rule or a privilege gives, of which a memory is to be told."""
_MEMORY = _any_of(
    r"(?:(?m:^)|[.!?:;,(]|\b(?:please|also|and|always))\s{0,3}(?:remember|memori[sz]e|internali[sz]e|(?:keep|bear) in mind|(?:don't|do not) forget|jot\b[^.?!\n]{0,15}\bdown|make a note|note (?:to|for) \w*self)\b",
    r"\b(?:store|save|keep|record|add|put|write|commit|update)\b[^.?!\n]{0,30}\b(?:memory|mind|your(?: [\w-]+)? (?:notes|records|knowledge|lessons)|a (?:rule|lesson)|for (?:all )?(?:later|next|future))\b",
    r"\byour (?:memory|records|notes) (?:should|must)\b",
    r"\b(?:tell|teach|inform|instruct|let)\b(?: [\w-]+){1,3}? (?:colleagues|agents|assistants|bots)\b",
    r"\b(?:could|can|would|will) you (?:please )?(?:remember|memori[sz]e|bear in mind|keep in mind)\b",
    r"\bmerken? (?:dir|sie sich)\b|\bmerk dir\b",
    r"\bonthoud\b|\u0437\u0430\u043f\u043e\u043c\u043d\u0438|\b(?:recuerda|retiens|ricorda|souviens-toi)\b",
)
"""What asks a memory to hold something."""
_STANDING = _any_of(
    r"\b(?:(?:going|moving) forward\b|for next time\s*:|get used to\b|(?:every|each|any|next) time (?:some|any)(?:one|body)\b)",
    r"\b(?:for|in|with) (?:all |any |every )?(?:the )?(?:other|next|later|future|coming|subsequent|following|all)(?: other)? (?:customers?|clients?|users?|people|tickets?|cases?|requests?|chats?|conversations?|sessions?|calls?)\b",
    r"(?<!\bI )(?<!\bto )\bmake (?:it|this|that) (?:a|your|the) (?:rule|habit|policy|practice|default|standard)\b",
    r"\b(?:treat|take|regard|consider) (?:it|this|that) as (?:a |an |your |the )?(?:rule|policy|law|standard|precedent)\b",
)
"""What makes an order one for later."""
_GRANT = _any_of(
    r"(?:refund|reimburse|waive|approve|authori[sz]e|grant|skip|bypass|credit)\b(?! cards?\b)",
    r"(?:refund|reimburs|waiv|approv|authori[sz]|grant|skipp|bypass|credit)ing\b",
    r"(?:give|issue|offer|accept)\b(?: [\w-]+){0,4}? (?:refunds?|discounts?|vouchers?|coupons?|credits?|access|returns?)\b",
    r"do (?:it|so|all|everything) without\b",
)
"""What a standing order tells the agent to do."""
_PEOPLE = r"(?:customer|client|guest|caller|shopper|buyer|member|user)s?\b(?! (?:of (?:my|our)|service|house|number|manual|guide|app|account)\b)"
_GIFT = _any_of(
    rf"\b{_GRANT}|\b(?:refund|reimburse|waive|approve|authori[sz]e|grant|credit|double|compensate)e?[ds]\b(?! (?:by|before|only)\b)",
    r"\b(?:vouchers?|coupons?|twice|money back|no (?:receipt|proof|question)s?|pa(?:y|ys|id) (?:[\w-]+ ){0,4}?(?:back|at once|first|now|on the spot|immediately|without)|(?:never|not|don't|no) (?:\w+ ){0,2}?(?:ask|check|charge|verify|require|demand))\b",
    r"\b(?:doppelt|zweimal|erstatt\w*|(?:ver)?schenk\w*|gutschein\w*|rembours\w*|deux fois|reembols\w*|dos veces|rimbors\w*|due volte)\b",
)
"""What a rule that somebody says there is lets the agent do."""
_INSTRUCTIONS = {
    "asks to ignore instructions": (
        r"\b(?:ignore|disregard|forget|override)\b(?:[^.\n]|\n(?!\n)){0,40}\b(?:instructions?|prompts?|rules|polic(?:y|ies)|guidelines|what you were told)\b",
    ),
    "speaks as the system": (
        r"\b(?:system|admin(?:istrator)?|developer)\s+(?:note|notice|message|prompt|override|instructions?)\b\s*[:>\]]",
        r"\[\s*(?:system|admin|developer)\s*\]|(?-i:\bSYSTEM (?:OVERRIDE|MESSAGE|PROMPT)\b)",
        r"(?m:^)(?:[ \t]{0,9}assistant\s*:|#+\s*(?:system|developer|assistant) ?:?[ \t]{0,9}(?m:$))",
        r"<\|\w{4,20}\|>|<<sys>>|\[/?inst\]",
        rf"(?m:^)[ \t]{{0,9}}(?:(?-i:SYSTEM|ADMIN(?:ISTRATOR)?|DEVELOPER)\s*:[^\n]{{0,60}}\b(?:is|are|has|have|must|may|do)\b|(?:system|admin(?:istrator)?|developer)\s*:[^?\n]{{0,60}}{_PRIVILEGE})",
    ),
    "has the tags of a prompt": (
        r"(?:[<\u2039]|&lt;)/?\s*(?:system|instructions?|information|attempt|memory|record|lessons?|advice|conversation|important)\s*(?:[>\u203a]|&gt;)",
    ),
    "changes what the agent is for": (
        r"\b(?:you are now|from now on,? (?:you|always|never)|your new (?:task|role|instructions?)|new instructions?\s*:|new rules? for you\b)",
        r"\b(?:vergiss|ignoriere|olvida|ignora|ignorez|oubliez)\b[^.\n]{0,40}\b(?:anweisung|regel|instru[ck]|istruzion)",
    ),
    "speaks to the agent's memory": (
        r"\b(?:note|add|save|write|put|store)\b[^.\n]{0,20}(?:\byour memory\b|\bto memory\s*:)",
        r"\b(?:in|for) (?:all )?future (?:conversations?|chats?|sessions?)\b",
        rf"(?:{_MEMORY}|{_STANDING})[^?!\n]{{0,100}}?{_PRIVILEGE}",
        r"\b(?:please learn (?:that|to)|(?:remember|memori[sz]e|learn) th(?:is|ese) (?:[\w-]+ )?(?:rules?|lessons?|polic(?:y|ies)|instructions?)|(?:store|save|keep|remember) (?:this|that|it) as an? (?:lesson|rule|memory|instruction))\b",
    ),
    "hands the agent a task": (
        r"\bbefore (?:you|doing|answering)[^.\n]{0,60}\b(?:task|request|anything)\b[^.\n]{0,60}\b(?:do|follow|call|send|execute)\b",
        r"\b(?:important message (?:from|to)|must (?:first |always )?(?:call|use|execute|invoke) the (?:tool|function))\b",
    ),
    "sets a rule for all": (
        r"\b(?:from (?:now|today|this day) on(?:wards?)?|as of (?:now|today)|henceforth|ab (?:sofort|jetzt|heute)|von (?:nun|jetzt|heute) an|[a\u00e0] partir de (?:ahora|hoy|maintenant)|desde (?:ahora|hoy)|d\u00e9sormais|dor\u00e9navant|d'ora in (?:poi|avanti)|da oggi)\b,?[^.,;:!?\n]{0,40}\b(?:every(?:one|body)?|all|each|any(?:one|body)?|immer|stets|alle[nmrs]?|jede[nmrs]?|siempre|tod[oa]s|toujours|tou(?:s|te|tes)|sempre|tutt[ei]|ogni|chaque|cada)\b(?! (?:of |de )?(?:my|our|mine|mis?|mes|nos|meine\w*|unsere\w*|miei|mie)\b)",
    ),
    "gives a standing order": (
        rf"\b(?:whenever|(?:every|each|any|next) time|as soon as|once|when|if|should)\b (?:(?:some|any)(?:one|body)(?= (?:asks? (?:about|for|whether|if)|mentions?|wants?|says?|complains?|claims?)\b)(?![^.!\n]{{0,120}}\b(?:I|me|my|us|our)\b)|(?:an?|any|the|every) (?:[\w-]+ )?{_PEOPLE})[^.?!\n,]{{0,60}},\s(?:(?:please|just|simply|then|always|you(?: should| must| may| can)?) )*(?:pay\b|(?:send|tell|give|hand|point|direct|refer|forward|mail|say|offer|charge) (?:him|her|them|it|every(?:one|body)|the|that|this|an?|no|nothing|yes)\b)(?![^.!\n]{{0,120}}\?)",
        r"\b(?:wenn|falls|sobald|si|quand|lorsqu\S|cuando|se|quando) ?(?:ein|un|el|la|le|il|der|die)\w* (?:kund|client)\w*[^.?!\n,]{0,60}, ?(?:schick|sende|gib|sag|zahl|erstatt|envo[iy]|di[st]|donne|rembours|offr|m[a\u00e1]nd|env[i\u00ed]|d[ia\u00ed]l|reembols|invi|d[ia]gl|rimbors)(?![^.!\n]{0,120}\?)",
        rf"\b(?:whenever|(?:every|each|any|next) time|as soon as|(?:when|if) (?:some|any)(?:one|body)|whoever)\b[^.?!\n,]{{0,50}},\s(?:(?:please|just|then|always|you (?:should|must|may|can)) )*{_GRANT}(?![^.!\n]{{0,120}}\?)",
        rf"(?:\b(?:(?:please|should|must|to) always|automatically)|(?:(?m:^)|[.!:;]\s)always) {_GRANT}(?![^.!\n]{{0,120}}\?)",
        rf"(?:(?m:^)|[.!:;]\s|\bwe )(?:never (?:ask|check|demand|require|verify)\b[^.?!\n]{{0,25}} (?:proofs?|receipts?|ids?|identi\w+|evidence|reasons?)\b|always (?:(?:pay|refund|reimburse|credit|grant)\b[^.?!\n]{{0,15}} (?<!our ){_PEOPLE}|give (?:all |every )?{_PEOPLE}[^.?!\n]{{0,25}} back\b))(?![^.!\n]{{0,120}}\?)",
        rf"{_STANDING}(?:(?:[^.?!\n]{{0,60}}(?:[,:;]|\b(?:to|and|please|always)))? (?:please |always |just )*{_GRANT}|[^.?!\n]{{0,60}}\b(?:(?:should|must|will|shall) (?:always )?be (?:refunded|reimbursed|granted|approved|waived|accepted)|means? (?:a )?refund)\b)(?![^.!\n]{{0,120}}\?)",
        rf"\b{_PEOPLE} (?:who|that|with|from)\b[^.?!\n]{{0,60}}\b(?:(?:(?:have|are) to|should|must|shall) (?:always )?be|are always) (?:refunded|reimbursed|approved|waived|credited|paid|sent to)\b(?![^.!\n]{{0,120}}\?)",
        r"\bwhoever\b[^.?!\n]{0,40} (?:may|can) (?:see|get|have|read|change|cancel)\b",
    ),
    "announces a rule": (
        r"\b(?:your new (?:policy|rule) is\b|(?:(?:new|updated|changed) (?:policy|rule|procedure)|(?:policy|rule) (?:update|change))\s*:(?![^.!\n]{0,120}\?))",
        rf"\b(?:policy|rules?) (?:has|have|was|were|is|are) (?:now|changed|new|updated)\b(?![^.!\n]{{0,120}}\?)[^.!\n]{{0,40}}{_PRIVILEGE}",
        r"\b(?:lesson|tip|hint)s?(?: is)? (?:that|for|to) (?:[\w-]+ ){0,2}(?:agents?|assistants?)\b",
        rf"\b(?:(?:our|(?:the |our )?(?:company|team|store|shop|house|firm)(?:['\u2019]s)?) (?:house )?(?:rule|policy|practice)\b(?: (?:since|as of|from|for|in) [^.:,\n]{{1,25}})?(?:(?: is)?:| (?:is|says) (?:to|that (?:you|agents?|assistants?|all|any\w*|each|every\w*|no))\b| that\b)|(?:rule|policy|practice) (?:here|(?:in|of|at) (?:this|the|our) (?:house|company|team|shop|store|firm))(?: is\b|:)|(?:unsere? regel|notre (?:r\u00e8gle|politique)|nuestra (?:regla|pol\u00edtica)|nostra (?:regola|politica))\b)(?![^.!\n]{{0,120}}(?:\?|\b(?:I|me|my)\b))[^.?!\n]{{0,60}}?{_GIFT}",
        rf"\b(?:(?:it (?:has been|was|is)|as) |(?:management|board|team|company|boss|owners?|committee|users?|customers?|every(?:one|body)|we) (?:here |all )?(?:ha(?:s|ve|d) )?)(?:now )?(?:agreed|decided|settled|ordered|wants?|orders?|expects?)\b[^.?!\n]{{0,30}}?\b(?:(?:assistant|agent|bot|chatbot|model|ai)s? (?:\w+ ){{0,3}}?(?:refund|pay|send|give|hand|credit|waive|grant|approve|skip|transfer|issue|forward|share|delete|cancel|accept)s?\b(?! (?:me|my|us|our)\b)|you (?:{_GRANT}|give|pay) (?:all|any|each|every)\b(?! (?:of )?(?:my|our)\b))(?![^.!\n]{{0,120}}\?)",
        rf"\b(?:lesson|takeaway|moral|conclusion)s?\b(?: (?:here|for (?:you|next time|later)|(?:of|from) (?:this|the|today)[\w'\u2019]*(?: [\w-]+)?))*(?: is\b(?: that you| to)?:?|:) (?:please |always )?{_GIFT}",
        r"\bfuture self\b|(?<!\bmy )\blessons? (?:from|of) this (?:conversation|chat|ticket)\b",
        rf"\blessons? learned\s*:(?![^.\n]{{0,30}}\b(?:I|we|my|our)\b)[^?\n]{{0,80}}(?:\b(?:always|never)\b|{_GIFT})",
        rf"\blessons?\s*: (?:please |always )?(?:recommend|suggest|offer|promote)\b|\b(?:good|smart|helpful|the best) (?:agents?|assistants?|bots?) (?:will |always )?{_GRANT}",
    ),
    "asks for silence": (
        r"\b(?:do not|don't|never) (?:tell|mention|inform|show|reveal)[^.\n]{0,30}\b(?:user|customer|anyone|this)\b",
    ),
}
"""Reason -> the texts that read like instructions for it."""
_PATTERNS = {reason: re.compile("|".join(texts), re.IGNORECASE) for reason, texts in _INSTRUCTIONS.items()}


class Suspicion(NamedTuple):
    """The reason for which a text is no evidence."""

    reason: str
    digest: str
    """Of the text: one that a person has released is not found again."""


@dataclass(frozen=True)
class Screen:
    """The screen at every write to a memory of conversations: `screen=Screen(pii=True)` of a learner.

    Args:
        redacts: True, the default: secrets (keys, tokens, passwords and PINs after their name, card numbers) become `[secret]`.
        pii: True: e-mail addresses, IBANs, US social security numbers, and phone numbers with a country code or as 415-555-2671 become
            `[private]`, and no national forms. Calls that have them as arguments are then remembered without them. By default False.
        unlearned_tools: names of tools of which nothing is learned: neither that they were called, nor what they said. By default none.
        finds_instructions: True, the default: long results of tools, and those with orders, are remembered without their words;
            a turn in which a user gives the agent instructions is quarantined, with what follows in its thread, and such words of
            feedback are left out.
        trusted_tools: names of tools whose results are the app's own words, such as its policies: they are remembered as they are,
            however long. By default none.

    Raises:
        UserError: an option is misspelt, or has a value of another kind.
    """

    redacts: bool = True
    pii: bool = False
    unlearned_tools: tuple[str, ...] = ()
    finds_instructions: bool = True
    trusted_tools: tuple[str, ...] = ()
    secrets: ClassVar[frozenset[str]] = frozenset()
    """The words that are blackened wherever they stand: those of a thread (`of_thread`)."""
    digests: ClassVar[tuple[str, ...]] = ()
    """12 bits of a digest of each, with the thread's name in it: that tells little of a word, since one in 4,096 has the same."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Check the options' names; raises `UserError` where one is misspelt."""
        for name in given.keys() - (known := [one.name for one in fields(cls)]):
            raise UserError(f"Screen has no option {name!r}{did_you_mean(name, known, 'it has')}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("_tools"):
                if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
                    raise UserError(f"Screen: {name} is names of tools, such as ('search',); got {value!r}")
            elif not isinstance(value, bool):
                raise UserError(f"Screen: {name} is True or False; got {value!r}")

    def redact(self, text: str) -> str:
        """A text with its secrets blackened."""
        text = _redacted(text, self.pii) if self.redacts else text
        known = self.secrets
        return _TOKEN.sub(lambda one: "[secret]" if one[0].casefold() in known else one[0], text) if known else text

    def of_thread(self, said: Sequence[BaseMessage | str], thread: str = "", told: Collection[str] = ()) -> Self:
        """The screen for what is said in a thread: it knows the words that these messages or texts tell as secrets, and those of them of
        which `told`, that of the thread's recorded turns (`Turn.secrets`), has the digests."""
        texts = [one if isinstance(one, str) else str(one.text) for one in said]
        calls = [call["args"] for one in said if isinstance(one, AIMessage) for call in one.tool_calls]
        answers = (_ANSWER.match(answer) for asked, answer in pairwise(texts) if _ASKS.search(asked))
        texts += [f"password: {one[1]}" for one in answers if one]
        given = (word for args in calls for one in _secret_values(args) for word in _told_words(one))
        found = self.secrets.union(*map(_told, texts), (one for one in given if not one.isalpha()))
        known = frozenset(told)
        found = found.union(*(_words_told(one, thread, known) for one in texts if told)) if self.redacts else self.secrets
        made, digests = copy(self), known.union(_secret_digest(one, thread) for one in found)
        vars(made).update(secrets=found, digests=tuple(sorted(digests)))  # they are no options
        return made

    def suspicion(self, *texts: str) -> Suspicion | None:
        """The first instruction-like text of others; None if there is none."""
        return next(filter(None, map(_suspicion, texts if self.finds_instructions else ())), None)

    def suspicion_in(self, messages: Sequence[BaseMessage]) -> Suspicion | None:
        """The first text of a user in some messages that reads like an instruction to the agent."""
        found = self.suspicion(*(str(message.text) for message in messages if isinstance(message, HumanMessage)))
        return found and found._replace(reason=f"the user {found.reason}")

    def steps(
        self,
        messages: Sequence[BaseMessage],
        state_key: StateKey,
        start: int = 0,
        listed: Mapping[str, Collection[str]] | None = None,
    ) -> tuple[Transition, ...]:
        """The steps of a conversation as they are remembered; states are compared by all that was read.

        Args:
            messages: of the user, the agent and its tools.
            state_key: the text of a state.
            start: place of the first message whose steps are wanted.
            listed: name of a tool -> its arguments whose values are kept, since the tool's schema lists them.
        """
        self = self.of_thread(messages)
        said, start, messages = messages, len(self.learnable(messages[:start])), self.learnable(messages, listed)
        done = steps(messages, state_key, start=start)
        if not self.finds_instructions:
            return done
        origins = Origins(lambda text: self.suspicion(text) is not None, self.trusted_tools, listed or {})
        told = steps(self._read(origins, said, listed), text_read, start=start)
        kept = [
            replace(one, action=n.action, observation=n.observation or NOTHING_READ) for one, n in zip(done, told, strict=True)
        ]
        return tuple(one for one in _learnable_steps(kept) if one is not None)

    def retell(
        self, done: Sequence[Transition], listed: Mapping[str, Collection[str]] | None = None
    ) -> tuple[list[Transition | None], list[str]]:
        """Steps that were recorded elsewhere, as they are remembered here, None for one that is not, and what users and the agent said in them."""
        origins = Origins(lambda text: self.suspicion(text) is not None, self.trusted_tools, listed or {})
        self = self.of_thread([one for _, read, said in told_steps(done) for one in (*read, said)])
        kept, spoken, observation = list[Transition](), list[str](), ""
        for step, read, said in told_steps(done):
            spoken += [str(message.text) for message in (*read, said) if isinstance(message, HumanMessage | AIMessage)]
            if self.finds_instructions:
                heard, acted = self._read(origins, read), self._read(origins, [said], listed)
            else:
                heard, acted = self.learnable(read), self.learnable([said], listed)
            if read:
                observation = text_read([one for one in heard if str(one.text)])
            elif step.observation == AT_ONCE:
                observation = AT_ONCE
            way = next((way for way in (REPLY, REJECTED) if step.action.startswith(way)), "")
            calls = acted[0].tool_calls if acted else []
            action = "" if not acted else call_text(calls[0]) if calls else str(acted[0].text).removeprefix(way)
            told = replace(step, state=self.redact(step.state), action=way + action, observation=observation or NOTHING_READ)
            kept.append(told if acted else replace(told, action=FROM_TOOL))
        return _learnable_steps(kept), spoken

    def _read(
        self, origins: Origins, said: Sequence[BaseMessage], listed: Mapping[str, Collection[str]] | None = None
    ) -> list[Any]:
        """The learnable messages as they are remembered. Results that are never to be learned are read as well: the agent may quote them."""
        kept = list[Any]()
        for message in said:
            found = self.learnable([message], listed)
            read = [origins.read(one) for one in found or [message] if found or isinstance(message, ToolMessage)]
            kept += read if found else []
        return kept

    def learnable(self, messages: Sequence[BaseMessage], listed: Mapping[str, Collection[str]] | None = None) -> list[Any]:
        """The messages that may be learned from, with their secrets blackened; `listed` as in `steps`."""
        kept = list[BaseMessage]()
        for message in messages:
            if isinstance(message, ToolMessage) and message.name in self.unlearned_tools:
                continue
            update: dict[str, Any] = {}
            if isinstance(message.content, str) and (text := self.redact(message.content)) != message.content:
                update["content"] = text
            elif isinstance(message.content, list):
                update["content"] = [self._block(block) for block in message.content]
            if isinstance(message, AIMessage) and message.tool_calls:
                calls = [call for call in message.tool_calls if call["name"] not in self.unlearned_tools]
                if not calls and not str(message.text).strip():
                    continue
                update["tool_calls"] = [self._call(call, listed) for call in calls]
            if isinstance(message, ToolMessage) and isinstance(mark := message.additional_kwargs.get(MARK), dict):
                update["additional_kwargs"] = {**message.additional_kwargs, MARK: self._call(mark, listed)}
            kept.append(message.model_copy(update=update) if update else message)
        return kept

    def state_key(self, key: StateKey) -> StateKey:
        """The same state key, of what may be learned from: states are compared as they are kept."""

        def state(read: Sequence[BaseMessage]) -> str:
            if (found := key(self.of_thread(read).learnable(read))) is None:
                raise UserError("state_key returned None, and returns the text of a state: does it lack a `return`?")
            return str(found)

        return state

    def _block(self, block: Any) -> Any:
        if isinstance(block, str):
            return self.redact(block)
        return {**block, "text": self.redact(block["text"])} if isinstance(block.get("text"), str) else block

    def _call(self, call: Mapping[str, Any], listed: Mapping[str, Collection[str]] | None) -> dict[str, Any]:
        """A call (`name`, `args`) with its secrets blackened: what the tool's schema lists is none."""
        known = (listed or {}).get(call["name"], ())
        return {**call, "args": {name: one if name in known else self._value(one, name) for name, one in call["args"].items()}}

    def _value(self, value: Any, name: str) -> Any:
        """The value of an argument with its secrets blackened."""
        if isinstance(value, dict):
            return {key: self._value(one, str(key)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(one, name) for one in value]
        if self.redacts and (_is_secret(name, value) or (isinstance(value, int) and str(value) in self.secrets)):
            return "[secret]"
        return self.redact(value) if isinstance(value, str) else value


def _secret_digest(word: str, thread: str) -> str:
    return blake2b(f"{thread}\0{word}".encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()[:3]


@lru_cache(maxsize=8_192)
def _words_told(text: str, thread: str, told: frozenset[str]) -> frozenset[str]:
    """The words of a text whose digests are among those that a thread has told."""
    words = {one.casefold() for one in _TOKEN.findall(text) if len(one) >= LEAST_SECRET_CHARS}
    return frozenset(one for one in words if _secret_digest(one, thread) in told)


def _is_secret(name: str, value: Any) -> bool:
    """True if an argument is a secret by its name."""
    return value is not None and not isinstance(value, bool) and _ARGUMENT.fullmatch(f"{name}={value}") is not None


def _secret_values(value: Any, name: str = "") -> list[str]:
    """The arguments in a value of a call that are secrets by their names."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else ((name, one) for one in value)
        return [one for key, part in parts for one in _secret_values(part, str(key))]
    return [str(value)] if _is_secret(name, value) else []


def _told_words(value: str) -> list[str]:
    """The words of a secret that are blackened wherever they stand: the only one, or those with digits."""
    words = _TOKEN.findall(value.casefold())
    known = [one for one in words if len(words) == 1 or any(sign.isdigit() for sign in one)]
    return [one for one in known if len(one) >= LEAST_SECRET_CHARS and one not in ("secret", "private")]


@lru_cache(maxsize=8_192)
def _told(text: str) -> frozenset[str]:
    """The words of what a text names as a password, a PIN or another secret."""
    found = (one[0][len(one[1]) :] for pattern in _TELLING for one in pattern.finditer(text))
    return frozenset(word for value in found for word in _told_words(value))


def _learnable_steps(done: Sequence[Transition]) -> list[Transition | None]:
    """The steps, None in the place of a call that a tool's order explains: what it had read, the next call of its message has."""
    kept, read = list[Transition | None](), ""
    for step in done:
        if read and step.observation == AT_ONCE:
            step = replace(step, observation=read)
        is_kept = not step.action.removeprefix(REJECTED).startswith(FROM_TOOL)
        read = "" if is_kept or step.observation == AT_ONCE else step.observation
        kept.append(step if is_kept else None)
    return kept


@lru_cache(maxsize=8_192)
def _redacted(text: str, pii: bool) -> str:
    text = _SECRETS.sub("[secret]", text)
    for pattern in _TELLING:
        text = pattern.sub(r"\1[secret]", text)
    text = _CARD.sub(lambda found: "[secret]" if _is_card(found[0]) else found[0], text)
    return _PII.sub("[private]", text) if pii else text


@lru_cache(maxsize=8_192)
def _suspicion(text: str) -> Suspicion | None:
    plain, digest = readable(text), blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return next((Suspicion(reason, digest) for reason, pattern in _PATTERNS.items() if pattern.search(plain)), None)


def _is_card(text: str) -> bool:
    """True if the digits of a text pass the check of card numbers (Luhn)."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) if place % 2 else digit for place, digit in enumerate(reversed(digits))]
    return len({*digits}) > 1 and sum(doubled) % 10 == 0
