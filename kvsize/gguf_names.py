"""GGUF architectures under the names that transformers gives the same models.

Engines key some of their rules on these names. A row: architecture, model_type, class. The classes are those that
llama.cpp's converter reads the architecture from, llama.cpp@b11434 conversion/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping

_TABLE = """
afmoe           afmoe               AfmoeForCausalLM
apertus         apertus             ApertusForCausalLM
arcee           arcee               ArceeForCausalLM
bailingmoe      bailing_moe         BailingMoeForCausalLM
bailingmoe3     bailing_hybrid      BailingMoeV3ForCausalLM
bert            bert                BertModel
bitnet          bitnet              BitNetForCausalLM
bloom           bloom               BloomForCausalLM
chameleon       chameleon           ChameleonForConditionalGeneration
chatglm         chatglm             ChatGLMForConditionalGeneration
cohere2         cohere2             Cohere2ForCausalLM
cohere2moe      cohere2_moe         Cohere2MoeForCausalLM
command-r       cohere              CohereForCausalLM
dbrx            dbrx                DbrxForCausalLM
deci            nemotron-nas        DeciLMForCausalLM
deepseek2       deepseek_v3         DeepseekV3ForCausalLM
deepseek32      deepseek_v32        DeepseekV32ForCausalLM
deepseek4       deepseek_v4         DeepseekV4ForCausalLM
dots1           dots1               Dots1ForCausalLM
dots3note       dots3_note_text     Dots3NoteForCausalLM
ernie4_5        ernie4_5            Ernie4_5ForCausalLM
ernie4_5-moe    ernie4_5_moe        Ernie4_5_MoeForCausalLM
exaone          exaone              ExaoneForCausalLM
exaone-moe      exaone_moe          ExaoneMoEForCausalLM
exaone4         exaone4             Exaone4ForCausalLM
falcon          falcon              FalconForCausalLM
falcon-h1       falcon_h1           FalconH1ForCausalLM
gemma           gemma               GemmaForCausalLM
gemma2          gemma2              Gemma2ForCausalLM
gemma3          gemma3_text         Gemma3ForCausalLM
gemma3n         gemma3n_text        Gemma3nForCausalLM
gemma4          gemma4_text         Gemma4ForCausalLM
glm-dsa         glm_moe_dsa         GlmMoeDsaForCausalLM
glm4            glm4                Glm4ForCausalLM
glm4moe         glm4_moe            Glm4MoeForCausalLM
glm5-next       glm5_next_text      Glm5NextForConditionalGeneration
gpt-oss         gpt_oss             GptOssForCausalLM
gpt2            gpt2                GPT2LMHeadModel
gptneox         gpt_neox            GPTNeoXForCausalLM
granite         granite             GraniteForCausalLM
granite_swa     granite_swa         GraniteSWAForCausalLM
granitehybrid   granitemoehybrid    GraniteMoeHybridForCausalLM
granitemoe      granitemoe          GraniteMoeForCausalLM
grok            grok-1              Grok1ForCausalLM
hrm_text        hrm_text            HrmTextForCausalLM
hunyuan-dense   hunyuan_v1_dense    HunYuanDenseV1ForCausalLM
hunyuan-moe     hunyuan_v1_moe      HunYuanMoEV1ForCausalLM
hunyuan_vl      hunyuan_vl_text     HunYuanVLForConditionalGeneration
hy_v3           hy_v3               HYV3ForCausalLM
hy_v4           hy_v4               HYV4ForCausalLM
internlm2       internlm2           InternLM2ForCausalLM
jais2           jais2               Jais2ForCausalLM
jamba           jamba               JambaForCausalLM
kimi-linear     kimi_linear         KimiLinearForCausalLM
laguna          laguna              LagunaForCausalLM
lfm2            lfm2                Lfm2ForCausalLM
lfm2moe         lfm2_moe            Lfm2MoeForCausalLM
llama           llama               LlamaForCausalLM
llama4          llama4_text         Llama4ForCausalLM
mamba           mamba               MambaForCausalLM
mamba2          mamba2              Mamba2ForCausalLM
mellum          mellum              MellumForCausalLM
mimo2           mimo_v2_flash       MiMoV2FlashForCausalLM
minicpm         minicpm             MiniCPMForCausalLM
minicpm3        minicpm3            MiniCPM3ForCausalLM
minimax-01      minimax             MiniMaxText01ForCausalLM
minimax-m2      minimax_m2          MiniMaxM2ForCausalLM
minimax-m3      minimax_m3_vl_text  MiniMaxM3SparseForCausalLM
mistral3        ministral3          Ministral3ForCausalLM
mistral4        mistral4            Mistral4ForCausalLM
mpt             mpt                 MPTForCausalLM
muse-glimmer    muse_glimmer_text   MuseGlimmerForConditionalGeneration
nemotron        nemotron            NemotronForCausalLM
nemotron_h      nemotron_h          NemotronHForCausalLM
nemotron_h_moe  nemotron_h          NemotronHForCausalLM
olmo            olmo                OlmoForCausalLM
olmo2           olmo2               Olmo2ForCausalLM
olmoe           olmoe               OlmoeForCausalLM
openelm         openelm             OpenELMForCausalLM
orion           orion               OrionForCausalLM
paddleocr       paddleocr_vl_text   PaddleOCRVLForConditionalGeneration
phi2            phi                 PhiForCausalLM
phi3            phi3                Phi3ForCausalLM
phimoe          phimoe              PhiMoEForCausalLM
qwen            qwen                QWenLMHeadModel
qwen2           qwen2               Qwen2ForCausalLM
qwen2moe        qwen2_moe           Qwen2MoeForCausalLM
qwen2vl         qwen2_vl_text       Qwen2VLForConditionalGeneration
qwen3           qwen3               Qwen3ForCausalLM
qwen35          qwen3_5_text        Qwen3_5ForCausalLM
qwen35moe       qwen3_5_moe_text    Qwen3_5MoeForCausalLM
qwen3moe        qwen3_moe           Qwen3MoeForCausalLM
qwen3next       qwen3_next          Qwen3NextForCausalLM
qwen3vl         qwen3_vl_text       Qwen3VLForConditionalGeneration
qwen3vlmoe      qwen3_vl_moe_text   Qwen3VLMoeForConditionalGeneration
qwen4exp        qwen4_exp_text      Qwen4ExpForCausalLM
rwkv6           rwkv6               Rwkv6ForCausalLM
rwkv7           rwkv7               RWKV7ForCausalLM
seed_oss        seed_oss            SeedOssForCausalLM
smollm3         smollm3             SmolLM3ForCausalLM
stablelm        stablelm            StableLmForCausalLM
starcoder       gpt_bigcode         GPTBigCodeForCausalLM
starcoder2      starcoder2          Starcoder2ForCausalLM
step35          step3p5             Step3p5ForCausalLM
t5              t5                  T5ForConditionalGeneration
xverse          xverse              XverseForCausalLM
"""

# architecture -> (model_type, class). One that transformers has no name for keeps its own.
NAMES: Mapping[str, tuple[str, str]] = {
    arch: (model_type, name) for arch, model_type, name in (line.split() for line in _TABLE.strip().splitlines())
}
