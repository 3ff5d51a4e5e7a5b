"""The code with which the model of an exported folder is used, for its card."""

from __future__ import annotations

from meltpoint.sweeps.results.finalist_export import Form
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.task import Kind

LIBRARY: dict[Form, str] = {"model": "meltpoint", "transformers": "transformers", "onnx": "onnx"}
"""Form → `library_name` of the front matter."""

TEXTS = {
    "sentence": '"the soup was cold"', "pair": '("A man eats.", "Someone eats.")',
    "words": '["Anna", "Berg", "lives", "in", "Oslo"]',
}  # fmt: skip
TOKENISED = {
    "sentence": '["the soup was cold"]', "pair": '["A man eats."], ["Someone eats."]',
    "words": '[["Anna", "Berg", "lives", "in", "Oslo"]], is_split_into_words=True',
}  # fmt: skip
PIPED = {
    "sentence": '"the soup was cold"', "pair": '{"text": "A man eats.", "text_pair": "Someone eats."}',
    "words": '"Anna Berg lives in Oslo"',
}  # fmt: skip


def usage(form: Form, kind: Kind, pipeline: str) -> str:
    """A block of Python that loads the folder and predicts."""
    given = kinds.get(kind)
    if form == "model":
        code = [
            "import meltpoint as mp",
            "",
            'model = mp.load_model("FOLDER")',
            f"model.predict([{TEXTS[given.input]}])",
        ]
        code += [f"model.predict_proba([{TEXTS[given.input]}])"] if given.gives_probabilities else []
        return _block(code)
    if form == "transformers":
        words = ', aggregation_strategy="first"' if given.labels_words else ""  # the model was trained on first pieces
        code = ["from transformers import pipeline", "", f'predict = pipeline("{pipeline}", "FOLDER"{words})']
        return _block([*code, f"predict({PIPED[given.input]})"])
    code = [
        "import onnxruntime", "import transformers", "",
        'tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")',
        'session = onnxruntime.InferenceSession("FOLDER/model.onnx")',
        f'inputs = tokenizer({TOKENISED[given.input]}, padding=True, truncation=True, return_tensors="np")',
        '(logits,) = session.run(["logits"], dict(inputs))',
    ]  # fmt: skip
    return _block(code)


def _block(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```"])
