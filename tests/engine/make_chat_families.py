#!/usr/bin/env python3
"""Makes chat_families.json: what Jinja2 renders from templates of every family, for test_chat.c to compare with.

The templates are cut down to what they do with plain messages: tools, images and documents are left out, the turns are
written as in the templates published with the models. Needs the Python package jinja2.
"""
import json
import os

import jinja2
from jinja2.ext import loopcontrols

ALTERNATE = "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
CHATML_TURN = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
CHATML_OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
SYSTEM_SPLIT = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}SYSTEMLESS{% endif %}"
)
LLAMA2 = (
    SYSTEM_SPLIT.replace("SYSTEMLESS", "{% set system_message = false %}")
    + "{% for message in loop_messages %}" + ALTERNATE +
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_V01 = (
    "{{ bos_token }}{% for message in messages %}" + ALTERNATE +
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}"
)
MISTRAL_V02_NEW = (
    SYSTEM_SPLIT.replace("SYSTEMLESS", "").replace("'", '"').replace("{%", "{%-").replace("%}", "%}\n")
    + "\n{{- bos_token }}\n{%- for message in loop_messages %}\n    "
    + ALTERNATE.replace("{%", "{%-").replace("{{", "{{-") +
    '\n    {%- if message["role"] == "user" %}\n        {%- if loop.first and system_message is defined %}\n'
    '            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}\n'
    '        {%- else %}\n            {{- " [INST] " + message["content"] + " [/INST]" }}\n        {%- endif %}\n'
    '    {%- elif message["role"] == "assistant" %}\n        {{- " " + message["content"] + eos_token}}\n    {%- endif %}\n'
    "{%- endfor %}"
)
QWEN25 = (
    "{%- if messages[0]['role'] == 'system' %}\n"
    "    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
    "{%- else %}\n    {{- '<|im_start|>system\\nYou are a test. You don\\'t \"fail\".<|im_end|>\\n' }}\n{%- endif %}\n"
    "{%- for message in messages %}\n"
    '    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}\n'
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
GEMMA_ROLE = "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
GEMMA2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for message in messages %}" + ALTERNATE + GEMMA_ROLE +
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}\n{%- if messages[0]['role'] == 'system' -%}\n"
    "    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}\n    {%- set loop_messages = messages[1:] -%}\n"
    "{%- else -%}\n    {%- set first_user_prefix = \"\" -%}\n    {%- set loop_messages = messages -%}\n{%- endif -%}\n"
    "{%- for message in loop_messages -%}\n    " + ALTERNATE.replace("{%", "{%-").replace("%}", "-%}")
    + GEMMA_ROLE.replace("{%", "{%-").replace("%}", "-%}") +
    "\n    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else \"\") }}\n"
    "    {%- if message['content'] is string -%}\n        {{ message['content'] | trim }}\n    {%- endif -%}\n"
    "    {{ '<end_of_turn>\n' }}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n    {{'<start_of_turn>model\n'}}\n"
    "{%- endif -%}\n"
)
DEEPSEEK = (
    "{% set ns = namespace(system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt %}{{'<｜Assistant｜>OPEN'}}{% endif %}"
)
FIRST_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
)
TEMPLATES = [
    ("chatml", "chatml", "", "<|im_end|>", "{% for message in messages %}" + CHATML_TURN + "{% endfor %}" + CHATML_OPEN),
    ("chatml", "qwen2", "", "<|im_end|>", FIRST_SYSTEM + CHATML_TURN + "{% endfor %}" + CHATML_OPEN),
    ("chatml", "qwen2.5", "", "<|im_end|>", QWEN25),
    ("qwen3", "qwen3", "", "<|im_end|>", QWEN3),
    ("qwen3", "qwen3-thinking", "", "<|im_end|>",
     QWEN3.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")),
    ("llama-3", "llama-3", "<|begin_of_text|>", "<|eot_id|>", LLAMA3),
    ("llama-3.1", "llama-3.1", "<|begin_of_text|>", "<|eot_id|>", LLAMA31),
    ("llama-2", "llama-2", "<s>", "</s>", LLAMA2),
    ("mistral", "mistral-v0.1", "<s>", "</s>", MISTRAL_V01),
    ("mistral", "mistral-v0.2", "<s>", "</s>", MISTRAL_V01.replace(" + ' ' }}", "}}")),
    ("mistral", "mistral-v0.2-new", "<s>", "</s>", MISTRAL_V02_NEW),
    ("gemma-2", "gemma-2", "<bos>", "<eos>", GEMMA2),
    ("gemma-3", "gemma-3", "<bos>", "<eos>", GEMMA3),
    ("deepseek-r1", "deepseek-r1-distill", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", DEEPSEEK.replace("OPEN", "")),
    ("deepseek-r1", "deepseek-r1-distill-new", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
     DEEPSEEK.replace("OPEN", "<think>\\n")),
]
S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    ("one_turn", True, [(U, "What is 2 + 2?")]),
    ("system", True, [(S, "Be brief. "), (U, " Hi\n")]),
    ("turns", True, [(U, "Hi"), (A, " Hello! "), (U, "  spaces?  "), (A, "Yes.\n"), (U, "\u2003wide\u3000 \x1f")]),
    ("system_turns", False, [(S, " A\nB "), (U, "c"), (A, "d"), (U, "e"), (A, "f")]),
    ("blank_user", True, [(S, "s"), (U, " \n ")]),
    ("empty", True, [(S, ""), (U, "")]),
    ("thoughts", False, [(U, "q"), (A, "<think>\nhm\n</think>\n\nanswer"), (U, "r"), (A, "<think>\n\nwell\n</think>\n\n\nyes")]),
    ("two_answers", True, [(U, "q"), (A, "<think>a</think>b"), (A, "c"), (A, "d</think>e</think>\nf")]),
    ("tool_response", True, [(U, "q"), (A, "<think>a</think>b"), (U, "<tool_response>x</tool_response>"), (A, "z")]),
    ("late_system", True, [(U, "a"), (S, "b"), (U, "c"), (S, "d")]),
    ("two_users", True, [(U, "a"), (U, "b")]),
    ("assistant_first", True, [(A, "a"), (U, "b")]),
]


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def main():
    # As transformers sets Jinja up.
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = raise_exception
    out = []
    for family, name, bos, eos, template in TEMPLATES:
        compiled = environment.from_string(template)
        cases = []
        for conversation, prompt, turns in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in turns]
            try:
                text = compiled.render(messages=messages, add_generation_prompt=prompt, bos_token=bos, eos_token=eos)
            except Refused:
                text = None
            # Where turns must alternate, a system message among them would be dropped or become a role of its own: the
            # engine refuses it.
            if conversation == "late_system" and "raise_exception('turns')" in template:
                text = None
            cases.append({"name": conversation, "messages": messages, "add_generation_prompt": prompt, "text": text})
        out.append({"family": family, "name": name, "bos": bos, "eos": eos, "template": template, "cases": cases})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_families.json")
    with open(path, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


main()
