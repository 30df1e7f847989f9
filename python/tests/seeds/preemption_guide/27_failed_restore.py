result = scheduler.restore_task(saved_state)

if not result["success"]:
    print(f"恢复失败: {result['error']}")
    # 回退到默认恢复策略或人工介入
